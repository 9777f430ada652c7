-- A database knows which pulse it has, whichever product brought it.
BEGIN;

SELECT plan(11);

SELECT matches(v.version, '^\d+\.\d+$', 'the build puts in its version')
FROM pulse.version() AS v;
SELECT matches(v.build, '^\d+-\d+$', 'and the checksums of its tables and its code')
FROM pulse.version() AS v;
SELECT is(
    v.product,
    (SELECT CASE WHEN count(*) = 1 THEN 'extension' ELSE 'plain' END
     FROM pg_extension AS e WHERE e.extname = 'pulse'),
    'the product is what the catalog says'
)
FROM pulse.version() AS v;
SELECT is(
    (SELECT h.figure FROM pulse.health() AS h WHERE h.check_name = 'version'),
    (SELECT format('%s (%s), build %s', v.version, v.product, v.build) FROM pulse.version() AS v),
    'health says it'
);

-- pg_tle keeps an extension as functions; only its names are looked at.
CREATE SCHEMA pgtle;
CREATE FUNCTION pgtle."pulse.control"() RETURNS text LANGUAGE sql AS 'SELECT ''''::text';
SELECT is(
    v.product,
    (SELECT CASE WHEN count(*) = 1 THEN 'pg_tle' ELSE 'plain' END
     FROM pg_extension AS e WHERE e.extname = 'pulse'),
    'what pg_tle has the control file of came by pg_tle'
)
FROM pulse.version() AS v;

SELECT ok(
    EXISTS (SELECT FROM pulse_internal.access_matrix() AS m WHERE m.access = l.access AND m.namespace = 'pulse' AND m.object = 'version'),
    format('%s may ask for it', l.access)
)
FROM unnest('{producer,worker,viewer,approver,operator,admin}'::text []) AS l (access);

SELECT * FROM finish();
ROLLBACK;
