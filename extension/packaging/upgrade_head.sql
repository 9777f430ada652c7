-- pulse, the upgrade to @VERSION@
\echo Use "ALTER EXTENSION pulse UPDATE" to load this file. \quit

-- Workers go on while this runs; rather give up than queue them behind a lock.
SET LOCAL lock_timeout = '3s';

