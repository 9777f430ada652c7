-- Settings and schedules that applications declare.
BEGIN;

SELECT plan(30);

CREATE FUNCTION pg_temp.declared(
    kinds jsonb DEFAULT '{}', schedules jsonb DEFAULT '{}', application text DEFAULT 'shop',
    overwrite boolean DEFAULT false
) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(format('%s %s %s', r.item, r.name, r.verdict), ', ' ORDER BY r.item, r.name)
    FROM pulse.reconcile(application, kinds, schedules, overwrite) AS r
$$;
CREATE FUNCTION pg_temp.facts(item text, name text) RETURNS jsonb LANGUAGE sql AS $$
    SELECT pulse_internal.declared_facts(item, name)
$$;

-- Kinds

SELECT is(
    pg_temp.declared('{"mail": {"max_attempts": 5, "backoff": "exponential", "lane": "mail", "max_runtime": "5 min"}}'),
    'kind mail created', 'a kind gets what is declared'
);
SELECT is(
    pg_temp.facts('kind', 'mail'),
    '{"lane": "mail", "backoff": "exponential", "max_runtime": "00:05:00", "max_attempts": 5}',
    'all of it'
);
SELECT is(
    pg_temp.declared('{"mail": {"max_attempts": 5, "backoff": "exponential", "lane": "mail", "max_runtime": "5 min"}}'),
    'kind mail unchanged', 'said again it changes nothing'
);
SELECT is(
    (SELECT count(*) FROM pulse.audit AS a WHERE a.verb = 'set_kind'), 1::bigint,
    'and writes no audit'
);
SET LOCAL IntervalStyle = iso_8601;
SELECT is(
    pg_temp.declared('{"mail": {"max_attempts": 5, "backoff": "exponential", "lane": "mail", "max_runtime": "5 min"}}'),
    'kind mail unchanged', 'nor said by a session that writes intervals in another way'
);
RESET IntervalStyle;
SELECT is(
    pg_temp.declared('{"mail": {"max_attempts": 7, "lane": "mail"}}'), 'kind mail changed',
    'a new declaration is followed'
);
SELECT is(
    pg_temp.facts('kind', 'mail'), '{"lane": "mail", "max_attempts": 7}',
    'what is not declared any more is the default again'
);
SELECT pulse.set_kind('mail', lease_for => '1 min');
SELECT is(
    pg_temp.declared('{"mail": {"max_attempts": 8, "lane": "mail"}}'), 'kind mail changed',
    'a setting that is not declared is the operator''s'
);
SELECT pulse.set_kind('mail', max_attempts => 2);
SELECT is(
    pg_temp.declared('{"mail": {"max_attempts": 9, "lane": "mail"}}'), 'kind mail drift',
    'an operator''s change wins'
);
SELECT is(
    pg_temp.facts('kind', 'mail') -> 'max_attempts', '2', 'it stays'
);
SELECT results_eq(
    'SELECT d.name COLLATE "default", d.drift, d.facts -> ''max_attempts'' FROM pulse.declarations AS d',
    $$VALUES ('mail', true, '2'::jsonb)$$, 'and shows as drift'
);
SELECT pulse.set_kind('mail', max_attempts => 8);
SELECT is(
    pg_temp.declared('{"mail": {"max_attempts": 9, "lane": "mail"}}'), 'kind mail changed',
    'set back, the declaration counts again'
);
SELECT pulse.set_kind('mail', max_attempts => 2);
SELECT is(
    pg_temp.declared('{"mail": {"max_attempts": 9, "lane": "mail"}}', overwrite => true),
    'kind mail changed', 'overwrite takes it back'
);
SELECT is(pg_temp.declared(), 'kind mail removed', 'what is not declared any more is removed');
SELECT is(pg_temp.facts('kind', 'mail'), '{"lease_for": "00:01:00"}', 'and nothing else');
SELECT is_empty('SELECT FROM pulse_internal.declaration', 'nothing is remembered of it');

-- Schedules

SELECT is(
    pg_temp.declared(
        schedules => '{"digest": {"kind": "digest", "cron": "0 7 * * *", "timezone": "Europe/Berlin", "expires_in": "1 h"}}'
    ),
    'schedule digest created', 'a schedule is made'
);
SELECT results_eq(
    'SELECT s.timezone, s.options, s.next_at IS NOT NULL FROM pulse.schedules AS s',
    $$VALUES ('Europe/Berlin', '{"expires_in": "01:00:00"}'::jsonb, true)$$, 'as declared'
);
SELECT pulse.pause_schedule('digest', 'holidays') AS paused \gset
SELECT is(
    pg_temp.declared(
        schedules => '{"digest": {"kind": "digest", "cron": "0 8 * * *", "timezone": "Europe/Berlin"}}'
    ),
    'schedule digest changed', 'a pause is no change'
);
SELECT ok(
    (SELECT s.paused_at IS NOT NULL AND s.cron = '0 8 * * *' FROM pulse.schedules AS s), 'and stays'
);
SELECT is(
    pg_temp.declared(schedules => '{"digest": {"kind": "other", "every": "1 h"}}', application => 'blog'),
    'schedule digest taken', 'another application cannot have it'
);
SELECT pulse.schedule('nightly', 'nightly', every => '1 day') AS at \gset
SELECT is(
    pg_temp.declared(schedules => '{"nightly": {"kind": "nightly", "every": "1 hour"}}', application => 'blog'),
    'schedule nightly drift', 'nor what an operator made'
);
SELECT is(pg_temp.declared(application => 'blog'), 'schedule nightly drift', 'which it leaves alone');
SELECT pulse.unschedule('digest');
SELECT is(
    pg_temp.declared(schedules => '{"digest": {"kind": "digest", "cron": "0 8 * * *", "timezone": "Europe/Berlin"}}'),
    'schedule digest drift', 'what an operator removed stays away'
);
SELECT is(
    pg_temp.declared(
        schedules => '{"digest": {"kind": "digest", "every": "1 h"}}', overwrite => true
    ),
    'schedule digest created', 'unless it is overwritten'
);
SELECT pg_temp.declared(
    schedules => '{"digest": {"kind": "digest", "at": "2100-01-01 00:00+00"}}'
) AS declared \gset
SET LOCAL TimeZone = 'Asia/Kathmandu';
SELECT is(
    pg_temp.declared(schedules => '{"digest": {"kind": "digest", "at": "2100-01-01 00:00+00"}}'),
    'schedule digest unchanged', 'a time is the same in every time zone'
);
RESET TimeZone;
SELECT is(pg_temp.declared(), 'schedule digest removed', 'an application removes its own');
SELECT results_eq(
    'SELECT s.name COLLATE "default" FROM pulse.schedules AS s', $$VALUES ('nightly')$$, 'and only its own'
);

-- What cannot be

SELECT throws_ok(
    $$SELECT pulse.reconcile('shop', '{"mail": {"tries": 5}}')$$, 'PU002',
    'kinds declares ''mail'' with ''tries''', 'an unknown setting is refused'
);
SELECT throws_ok(
    $$SELECT pulse.reconcile('shop', schedules => '{"s": {"kind": "k", "cron": "x"}}')$$, 'PU007', NULL,
    'what schedule refuses is refused'
);

SELECT * FROM finish();

ROLLBACK;
