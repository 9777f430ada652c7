-- Large payloads: a claim hands out a bounded number of bytes, and what cannot be sent ends.
-- in turn: it takes some seconds, for it makes and hands out payloads of 64 MB
BEGIN;

SELECT plan(16);

-- As text: compressed they are small.
SELECT count(pulse.enqueue('k', jsonb_build_object('n', n, 'x', repeat('x', 8000000)), lane => 'large'))
FROM generate_series(1, 12) AS n \g /dev/null

CREATE TEMP TABLE got AS
SELECT c.lease, (c.payload ->> 'n')::integer AS n FROM pulse.claim_batch('w', 'large', 100) AS c;
SELECT results_eq(
    'SELECT n FROM got ORDER BY lease', 'SELECT generate_series(1, 8)',
    'a claim hands out 64 MB of payload at most, the first ones in line'
);
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'large', 100)), 4::bigint, 'and the next one the rest'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'nothing is lost on the way');

SELECT count(pulse.enqueue('k', jsonb_build_object('n', n), lane => 'small')) FROM generate_series(1, 100) AS n \g /dev/null
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'small', 100)), 100::bigint,
    'ordinary jobs come in batches as large as asked'
);

-- Nine groups of large jobs, of which eight fit into an answer: the ninth keeps its turn.
SELECT pulse.set_lane('in turns', fair => true, group_rate => 3, group_rate_per => '1 hour') \g /dev/null
SELECT count(pulse.enqueue('k', to_jsonb(repeat('x', 7900000)), lane => 'in turns', group_key => 'g' || n % 9))
FROM generate_series(1, 18) AS n \g /dev/null
CREATE TEMP TABLE round AS
SELECT array_agg(c.group_key) AS groups FROM pulse.claim_batch('w', 'in turns', 9) AS c;
SELECT is((SELECT cardinality(r.groups) FROM round AS r), 8, 'a claim of groups hands out 64 MB as well');
SELECT is(
    (
        SELECT s.starts IS NULL
        FROM pulse_internal.group_state AS s
        WHERE s.lane = 'in turns' AND s.group_key <> ALL ((SELECT r.groups FROM round AS r)::text [])
    ),
    true, 'a job that does not fit uses up no start of its group'
);
-- proves: G19
SELECT is(
    (
        SELECT c.group_key = ANY (r.groups)
        FROM pulse.claim_batch('w', 'in turns', 1) AS c
        CROSS JOIN round AS r
    ),
    false, 'guarantee 19: nor its turn'
);

-- Stored before there was a cap: 2,100 numbers of 131,072 digits.
SELECT pulse.set_lane('slots', max_slots => 9) \g /dev/null
SELECT
    pulse.enqueue('k', lane => 'slots', unique_key => 'huge') AS huge,
    pulse.enqueue('k', '"behind"', lane => 'slots') AS behind \gset
UPDATE pulse_internal.body SET payload = to_jsonb(array_fill(1e131071, ARRAY[2100])) WHERE job = :huge;
UPDATE pulse_internal.body SET payload = payload || to_jsonb(repeat('y', 30000000)) WHERE job = :behind;

CREATE TEMP TABLE went_on AS SELECT c.job_id FROM pulse.claim_batch('w', 'slots', 2) AS c;
SELECT results_eq(
    'SELECT job_id FROM went_on', format('VALUES (%s::bigint)', :behind),
    'a job that cannot be handed out does not keep the next one back'
);
SELECT results_eq(
    format('SELECT f.state::text, f.ended_by COLLATE "default", f.attempts FROM pulse_internal.finished AS f WHERE f.job = %s', :huge),
    $$VALUES ('dead', 'claim_batch', 1)$$, 'it is dead'
);
SELECT matches(
    (SELECT f.error FROM pulse_internal.finished AS f WHERE f.job = :huge),
    '^a payload of 26\d MB as text is too large to be handed out$', 'and says why'
);
SELECT is((SELECT f.error FROM pulse_internal.failure AS f WHERE f.job = :huge), (SELECT f.error FROM pulse_internal.finished AS f WHERE f.job = :huge), 'also among its attempts');
SELECT is(
    pulse.enqueue('k', lane => 'slots', unique_key => 'huge') > :behind, true, 'its key is free again'
);
SELECT is((SELECT count(*) FROM pulse.claim_batch('w', 'slots', 9)), 1::bigint, 'its slot too');

-- Alone in a lane with many slots.
SELECT pulse.set_lane('wide', max_slots => 300, max_batch => 1000) \g /dev/null
SELECT pulse.enqueue('k', lane => 'wide') AS huge \gset
UPDATE pulse_internal.body
SET payload = to_jsonb(array_fill(1e131071, ARRAY[2100])) || to_jsonb(repeat('y', 30000000)) WHERE job = :huge;
SELECT count(*) FROM pulse.claim_batch('w', 'wide', 1) \g /dev/null
SELECT count(*) FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[301]), 'wide') \g /dev/null
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'wide', 1000)), 300::bigint,
    'a job that cannot be handed out takes no slots with it'
);
SELECT results_eq(
    'SELECT r.lane COLLATE "default", count(*) FROM pulse_internal.roster AS r GROUP BY r.lane ORDER BY r.lane',
    $$VALUES ('slots', 1::bigint), ('wide', 1)$$, 'what had to be fitted leaves no roster behind'
);

SELECT is_empty('SELECT * FROM pulse.check()', 'and all is in order');

SELECT * FROM finish();
ROLLBACK;
