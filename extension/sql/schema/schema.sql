-- Plain CREATE: a schema that is already there may belong to another role and hold
-- functions of its own, so the installation refuses it.
CREATE SCHEMA pulse;

COMMENT ON SCHEMA pulse IS
'A job queue inside PostgreSQL: call its functions, read its views.';

CREATE SEQUENCE pulse.version;

COMMENT ON SEQUENCE pulse.version IS
'Versions of what is appended and read newest first.';
