-- pulse @VERSION@, the extension
\echo Use "CREATE EXTENSION pulse" to load this file. \quit

