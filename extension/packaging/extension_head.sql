-- pulse @VERSION@, the extension
\echo Use "CREATE EXTENSION pulse" to load this file. \quit

SET LOCAL search_path = pg_catalog, pg_temp;

