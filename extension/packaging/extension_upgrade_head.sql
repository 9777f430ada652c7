-- pulse, the upgrade from @FROM@ to @VERSION@
\echo Use "ALTER EXTENSION pulse UPDATE" to load this file. \quit

