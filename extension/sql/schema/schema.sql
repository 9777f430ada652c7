-- Everything in schema pulse is public: the functions, views and types that users name.
-- Tables, sequences and private functions stand in schema pulse_internal, which may
-- change with every version.
--
-- Plain CREATE: a schema that exists already may belong to another role and hold
-- functions of that role, so the installation refuses it.
CREATE SCHEMA pulse;

COMMENT ON SCHEMA pulse IS
'A job queue inside PostgreSQL: call its functions, read its views.';

CREATE SCHEMA pulse_internal;

COMMENT ON SCHEMA pulse_internal IS
'The tables and private functions of pulse. No part of the API: use schema pulse.';

CREATE SEQUENCE pulse_internal.version;

COMMENT ON SEQUENCE pulse_internal.version IS
'Versions of what is appended and read newest first.';
