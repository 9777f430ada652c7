-- pulse @VERSION@ for pg_tle: run this, then CREATE EXTENSION pulse.

SELECT pgtle.install_extension(
    'pulse',
    '@VERSION@',
    'A job queue inside PostgreSQL: leases, lanes, schedules, retries',
    $_pulse_tle_$
SET LOCAL search_path = pg_catalog, pg_temp;

