-- Heartbeats: they extend, tell, and never wait.
BEGIN;

SELECT plan(32);

CREATE FUNCTION pg_temp.beat(lease bigint)
RETURNS text
LANGUAGE sql
AS $$ SELECT h.verdict FROM pulse.heartbeat(ARRAY[beat.lease]) AS h $$;

-- How much longer the lease lasts, in seconds, to the nearest ten.
CREATE FUNCTION pg_temp.left_of(lease bigint)
RETURNS integer
LANGUAGE sql
AS $$
    SELECT round(extract(epoch FROM l.lease_until - clock_timestamp()), -1)::integer
    FROM pulse_internal.lease AS l
    WHERE l.lease = left_of.lease
$$;

SELECT pg_temp.claim('one') AS lease \gset
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() + interval '5 s' WHERE lease = :lease;
SELECT is(pg_temp.beat(:lease), 'ok', 'a lease that is there is ok');
SELECT is(pg_temp.left_of(:lease), 30, 'and extended to its whole length from now on');
SELECT ok(
    (
        SELECT h.lease_until - clock_timestamp() BETWEEN interval '20 s' AND interval '30 s'
        FROM pulse.heartbeat(ARRAY[:lease]) AS h
    ),
    'which it says'
);
SELECT pulse.enqueue('k', lane => 'long') AS job \gset
SELECT c.lease AS long FROM pulse.claim_batch('w', 'long', lease_for => '10 minutes') AS c \gset
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() + interval '1 s' WHERE lease = :long;
SELECT is(pg_temp.beat(:long), 'ok', 'a lease of ten minutes');
SELECT is(pg_temp.left_of(:long), 600, 'is extended by ten minutes');
UPDATE pulse_internal.lease SET lease_until = clock_timestamp() + interval '1 h' WHERE lease = :long;
SELECT is(pg_temp.beat(:long), 'ok', 'a heartbeat');
SELECT is(pg_temp.left_of(:long), 3600, 'never shortens a lease');

-- Lost

SELECT is(pg_temp.beat(711), 'lost', 'a lease that never was is lost');
SELECT is(pg_temp.beat(NULL), 'lost', 'so is none');
SELECT pg_temp.claim('done') AS done \gset
SELECT pulse.complete(:done);
SELECT is(pg_temp.beat(:done), 'lost', 'and one whose job has ended');
SELECT pg_temp.claim('given') AS given \gset
SELECT pulse.snooze(:given, '0');
SELECT c.lease AS again FROM pulse.claim_batch('w', 'given') AS c \gset
-- proves: G3
SELECT is(
    pg_temp.beat(:given), 'lost',
    'guarantee 3: an old lease is lost even when the same worker has the job again'
);
SELECT is(pg_temp.beat(:again), 'ok', 'whose new lease is not');

-- Not yet taken away

UPDATE pulse_internal.lease SET lease_until = clock_timestamp() - interval '1 h' WHERE lease = :lease;
-- proves: R8
SELECT is(
    pg_temp.beat(:lease), 'ok', 'rule 8: a lapsed lease that nobody took away is revived'
);
SELECT is(pg_temp.left_of(:lease), 30, 'in full');
SELECT is(pulse.reap(), 0::bigint, 'and reap leaves it alone');

-- Deadline

SELECT pg_temp.claim('deadline', max_runtime => '10 s') AS wedged \gset
SELECT is(pg_temp.beat(:wedged), 'ok', 'before its deadline a run is ok');
SELECT is(pg_temp.left_of(:wedged), 10, 'but its lease goes no further than that');
UPDATE pulse_internal.lease
SET claimed_at = claimed_at - interval '1 min', lease_until = clock_timestamp() - interval '1 ms',
    deadline = clock_timestamp() - interval '1 ms'
WHERE lease = :wedged;
SELECT is(pg_temp.beat(:wedged), 'deadline', 'rule 8: after it a heartbeat says deadline');
SELECT cmp_ok(pg_temp.left_of(:wedged), '<=', 0, 'and extends nothing');
-- proves: G5
SELECT is(pulse.reap(), 1::bigint, 'guarantee 5: so reap ends what heartbeats keep alive');
SELECT is(pg_temp.beat(:wedged), 'lost', 'and then the lease is lost');

-- Cancel

SELECT pg_temp.claim('cancel') AS asked \gset
SELECT pulse.cancel(l.job) AS c FROM pulse_internal.lease AS l WHERE l.lease = :asked \gset
SELECT is(pg_temp.beat(:asked), 'cancel', 'a cancel request comes with the heartbeat');
SELECT is(pg_temp.beat(:asked), 'cancel', 'each time');
SELECT cmp_ok(pg_temp.left_of(:asked), '<=', 30, 'and its lease ends with the grace');
SELECT ok(
    (SELECT l.lease_until <= l.cancel_by FROM pulse_internal.lease AS l WHERE l.lease = :asked),
    'however often it beats'
);

-- Many at once

SELECT results_eq(
    format(
        'SELECT h.lease, h.verdict FROM pulse.heartbeat(ARRAY[%1$s, 1, %2$s, NULL, %1$s, %3$s]) AS h',
        :lease, :asked, :long
    ),
    format(
        'VALUES (%1$s::bigint, ''ok''), (1, ''lost''), (%2$s, ''cancel''), (NULL, ''lost''), (%1$s, ''ok''), (%3$s, ''ok'')',
        :lease, :asked, :long
    ),
    'one row for each lease, in their order, twice where named twice'
);
SELECT is_empty($$SELECT * FROM pulse.heartbeat('{}')$$, 'no lease, no row');
SELECT is_empty('SELECT * FROM pulse.heartbeat(NULL)', 'nor for NULL');
SELECT is(
    (
        SELECT count(*)
        FROM pulse.heartbeat(array(SELECT -n::bigint FROM generate_series(1, 5000) AS n)) AS h
        WHERE h.verdict = 'lost'
    ),
    5000::bigint, 'thousands are fine'
);
SELECT is(
    (
        SELECT l.reap_at IS NULL OR l.reap_at <= l.lease_until
        FROM pulse_internal.lease AS l WHERE l.lease = :long
    ),
    true, 'a heartbeat leaves the time of the next look alone'
);
-- proves: R10
SELECT is_empty(
    $$
    SELECT i.indexrelid::regclass
    FROM pg_index AS i
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = 'pulse_internal.lease'::regclass
        AND a.attname = 'lease_until'
    $$,
    'rule 10: no index has lease_until, so that beats stay HOT'
);
SELECT is_empty('SELECT * FROM pulse.check()', 'check() finds nothing wrong');

SELECT * FROM finish();

ROLLBACK;
