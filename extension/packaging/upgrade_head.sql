-- pulse, the upgrade to @VERSION@
\echo Use "ALTER EXTENSION pulse UPDATE" to load this file. \quit

SET LOCAL search_path = pg_catalog, pg_temp;
-- Workers go on while this runs; rather give up than queue them behind a lock.
SET LOCAL lock_timeout = '3s';

