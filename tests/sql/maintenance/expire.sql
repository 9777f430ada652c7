-- Headers, and jobs that end unless they begin in time.
BEGIN;

SELECT plan(42);

-- Headers

SELECT pulse.enqueue('h', '{"a": 1}', lane => 'h', headers => '{"trace": "t1", "none": null}') AS job \gset
SELECT is(
    (SELECT b.headers FROM pulse_internal.body AS b WHERE b.job = :job),
    '{"trace": "t1", "none": null}'::jsonb, 'headers are kept beside the payload'
);
SELECT results_eq(
    $$SELECT c.payload, c.headers FROM pulse.claim_batch('w', 'h') AS c$$,
    $$VALUES ('{"a": 1}'::jsonb, '{"trace": "t1", "none": null}'::jsonb)$$,
    'a claim hands them out'
);
SELECT count(*) AS jobs
FROM pulse.enqueue_many('h', ARRAY['1', '2']::jsonb [], lane => 'h', headers => '{"n": 1}') \gset
SELECT count(*) AS jobs
FROM pulse.enqueue_many(
    '[{"kind": "h", "lane": "h", "headers": {"n": 2}}, {"kind": "h", "lane": "h", "headers": null}]'
) \gset
SELECT results_eq(
    $$SELECT x.headers FROM pulse.exchange('w', '{"h": 9}') AS x ORDER BY x.lease$$,
    $$VALUES ('{"n": 1}'::jsonb), ('{"n": 1}'), ('{"n": 2}'), (NULL)$$,
    'so does an exchange; enqueue_many takes them in both forms'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('h', headers => '[1]')$$, 'PU002', 'headers must be a JSON object',
    'headers are an object'
);
SELECT throws_ok(
    $$SELECT pulse.enqueue('h', headers => jsonb_build_object('x', repeat('x', 17000)))$$,
    'PU003', 'headers is larger than 16 kB', 'headers are no place for data'
);
SELECT pulse.schedule('s', 'h', every => '1 hour', headers => '{"by": null}', expires_in => '5 min') AS at \gset
UPDATE pulse_internal.schedule SET next_at = clock_timestamp() WHERE name = 's';
SELECT count(*) AS steps FROM pulse_internal.fire_schedules(clock_timestamp() + interval '1 s') \gset
SELECT results_eq(
    $$SELECT j.headers, j.start_by > clock_timestamp() FROM pulse.jobs AS j WHERE j.lane = 'default'$$,
    $$VALUES ('{"by": null}'::jsonb, true)$$, 'a schedule has both'
);

-- A claim ends what is late, and takes those behind it

SELECT pulse.enqueue('k', lane => 'l', unique_key => 'u', expires_in => '1 hour') AS job \gset
SELECT ok(
    (
        SELECT j.start_by BETWEEN clock_timestamp() + interval '59 min' AND clock_timestamp() + interval '1 h'
        FROM pulse.jobs AS j WHERE j.job_id = :job
    ),
    'expires_in counts from now'
);
SELECT matches(
    (SELECT string_agg(w.reason, E'\n') FROM pulse.why(:job) AS w),
    'cancelled unless it begins by .* \(59 min left\)', 'why says until when it may begin'
);
SELECT pulse.enqueue('k', lane => 'l') AS behind \gset

CREATE FUNCTION pg_temp.make_late(job_id bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE pulse_internal.expiry SET start_by = start_by - interval '1 day' WHERE job = make_late.job_id;
    UPDATE pulse_internal.body SET start_by = start_by - interval '1 day' WHERE job = make_late.job_id
$$;

SELECT pg_temp.make_late(:job);
-- A claim has 50 ms for late jobs: on a busy machine the next one goes on.
SELECT is(
    (
        SELECT c.job_id
        FROM generate_series(1, 20) AS n
        CROSS JOIN LATERAL pulse.claim_batch('w' || n, 'l') AS c
        LIMIT 1
    ),
    :behind::bigint, 'a claim passes over a late job'
);
SELECT results_eq(
    format(
        'SELECT state, ended_by::text COLLATE "default", attempts FROM pulse.jobs WHERE job_id = %s',
        :job
    ),
    $$VALUES ('cancelled', 'expire', 0)$$, 'which is cancelled and never began'
);
SELECT matches(
    (SELECT j.last_error FROM pulse.jobs AS j WHERE j.job_id = :job),
    '^expired: it had not begun by ', 'and says why'
);
SELECT is_empty('SELECT FROM pulse_internal.job_key', 'its key is free');
SELECT is_empty('SELECT FROM pulse_internal.lease AS l WHERE l.failures > 0 OR l.worker IS NULL', 'no lease is left');

SELECT count(*) AS jobs
FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[1500]), lane => 'many', expires_in => '1 hour') \gset
SELECT pulse.enqueue('k', lane => 'many') AS behind \gset
SELECT count(pg_temp.make_late(b.job)) AS late FROM pulse_internal.body AS b WHERE b.start_by IS NOT NULL \gset
-- A claim ends late jobs for 50 ms, then the next one goes on.
CREATE FUNCTION pg_temp.first_claim(lane text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_job bigint;
BEGIN
    FOR i IN 1..100 LOOP
        v_job := (SELECT c.job_id FROM pulse.claim_batch('w', first_claim.lane, 3) AS c);
        EXIT WHEN v_job IS NOT NULL;
    END LOOP;
    RETURN v_job;
END;
$$;

SELECT is(pg_temp.first_claim('many'), :behind::bigint, 'a job behind 1500 late ones is claimed');
SELECT is_empty(
    $$SELECT FROM pulse.jobs AS j WHERE j.lane = 'many' AND j.state = 'ready'$$, 'which have all ended'
);
SELECT is_empty('SELECT FROM pulse_internal.expiry', 'and are not looked at again');

SELECT pulse.set_lane('slots', max_slots => 2);
SELECT count(*) AS jobs
FROM pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[3]), lane => 'slots', expires_in => '1 hour') \gset
SELECT pg_temp.make_late(min(r.job)) FROM pulse_internal.ready AS r WHERE r.lane = 'slots' \gset
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'slots', 2)), 1::bigint,
    'a late job makes a batch shorter'
);
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'slots', 2)), 1::bigint,
    'and takes no slot'
);

-- Once it has begun it may be late

SELECT pulse.enqueue('k', lane => 'begun', expires_in => '1 hour') AS job \gset
SELECT c.lease FROM pulse.claim_batch('w', 'begun') AS c \gset
SELECT pg_temp.make_late(:job);
SELECT pulse.fail(:lease, 'oops', retry_in => '0');
SELECT is(pulse_internal.tick_expiry('infinity'), 0::bigint, 'a retry has begun');
SELECT is_empty(format('SELECT FROM pulse_internal.expiry WHERE job = %s', :job), 'nothing looks at it again');
SELECT is(
    (SELECT c.attempt FROM pulse.claim_batch('w', 'begun') AS c), 2, 'and is claimed, however late'
);

-- Tick, where nobody claims

SELECT pulse.enqueue('k', lane => 'idle', expires_in => '1 hour') AS ready \gset
SELECT pulse.enqueue('k', lane => 'idle', delay => '1 hour', expires_in => '1 hour') AS waiting \gset
SELECT pulse.enqueue('k', lane => 'idle', requires_approval => true, expires_in => '1 hour') AS approval \gset
SELECT pulse.enqueue('k', lane => 'idle', expires_in => '1 hour') AS early \gset
SELECT ok(
    (
        SELECT j.start_by > clock_timestamp() + interval '119 min'
        FROM pulse.jobs AS j WHERE j.job_id = :waiting
    ),
    'expires_in counts from when the job is due'
);
SELECT count(pg_temp.make_late(j)) AS late FROM unnest(ARRAY[:ready, :waiting, :approval]) AS j \gset
SELECT is(
    (SELECT t.did FROM pulse_internal.tick('{retention}') AS t WHERE t.step = 'expiry'), 3::bigint,
    'tick ends what is late, wherever it stands'
);
SELECT is(
    ARRAY(
        SELECT pg_temp.state(j) FROM unnest(ARRAY[:ready, :waiting, :approval, :early]::bigint []) AS j
    ),
    '{cancelled,cancelled,cancelled,ready}', 'and nothing else'
);
SELECT is((SELECT count(*) FROM pulse_internal.expiry), 3::bigint, 'only what is done is forgotten');

-- An operator's retry

SELECT is(pulse.retry(:ready), 'ready', 'an expired job can be retried');
SELECT is(
    (SELECT count(*) FROM pulse.claim_batch('w', 'idle', 2)), 2::bigint, 'and runs, however late'
);

-- Replace

SELECT pulse.enqueue(
    'k', lane => 'r', unique_key => 'r', on_conflict => 'replace', expires_in => '1 hour', headers => '{"n": 1}'
) AS job \gset
SELECT pg_temp.make_late(:job);
SELECT pulse.enqueue(
    'k', lane => 'r', unique_key => 'r', on_conflict => 'replace', expires_in => '2 hours', headers => '{"n": 2}'
) AS again \gset
SELECT is(:job, :again, 'a job is replaced');
SELECT is(pulse_internal.tick_expiry('infinity'), 0::bigint, 'what was replaced has the new time');
SELECT is(
    (SELECT c.headers FROM pulse.claim_batch('w', 'r') AS c), '{"n": 2}', 'and the new headers'
);

-- In one list, the last one counts
SELECT m AS job
FROM pulse.enqueue_many(
    '[{"kind": "k", "lane": "list", "unique_key": "x", "headers": {"n": 1}, "expires_in": "1 h"},
      {"kind": "k", "lane": "list", "unique_key": "x", "headers": {"n": 2}, "on_conflict": "replace"}]'
) AS m
LIMIT 1 \gset
SELECT results_eq(
    format('SELECT j.headers, j.start_by FROM pulse.jobs AS j WHERE j.job_id = %s', :job),
    $$VALUES ('{"n": 2}'::jsonb, NULL::timestamptz)$$, 'a list replaces both, too'
);

-- What cannot be

SELECT throws_ok(
    format('SELECT pulse.enqueue(''k'', %s)', options), 'PU002', NULL, options
)
FROM (
    VALUES
    ('start_by => now(), expires_in => ''1 h'''), ('expires_in => ''0'''),
    ('expires_in => ''2 years'''), ('start_by => ''infinity'''),
    ('run_at => now() + interval ''2 h'', start_by => now() + interval ''1 h'''),
    ('delay => ''2 h'', start_by => now() + interval ''1 h''')
) AS o (options);

SELECT pulse.enqueue('k', lane => 'past', start_by => now() - interval '1 s') AS job \gset
SELECT is_empty($$SELECT FROM pulse.claim_batch('w', 'past')$$, 'a job that is late at once never runs');
SELECT is_empty('SELECT * FROM pulse.check()', 'all is well');

-- A clock that steps back inside a claim puts the end of its time off; infinity stands for that.
SELECT pulse.enqueue_many('k', array_fill('{}'::jsonb, ARRAY[4000]), lane => 'late', expires_in => '1 h') \g /dev/null
UPDATE pulse_internal.body SET start_by = clock_timestamp() - interval '1 minute'
WHERE job IN (SELECT r.job FROM pulse_internal.ready AS r WHERE r.lane = 'late');
UPDATE pulse_internal.expiry AS e SET start_by = b.start_by
FROM pulse_internal.body AS b
WHERE b.job = e.job;
SELECT is(pulse_internal.expire_all('infinity'), false, 'a claim does not cancel all of many late jobs');
SELECT is(
    (SELECT count(*) FROM pulse_internal.ready AS r WHERE r.lane = 'late'), 1000::bigint,
    'but three pages of them, whatever the clock does'
);
SELECT is(pulse_internal.expire_all('infinity'), true, 'the next claim cancels the rest');

SELECT * FROM finish();

ROLLBACK;
