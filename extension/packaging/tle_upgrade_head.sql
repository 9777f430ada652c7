-- pulse for pg_tle, the upgrade from @FROM@ to @VERSION@: run this, then
-- ALTER EXTENSION pulse UPDATE TO '@VERSION@'.

SELECT pgtle.uninstall_update_path_if_exists('pulse', '@FROM@', '@VERSION@');

SELECT pgtle.install_update_path(
    'pulse',
    '@FROM@',
    '@VERSION@',
    $_pulse_tle_$
