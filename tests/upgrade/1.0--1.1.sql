-- From the source to the artificial 1.1 of builds.py: a column, a table, a type that grows.
-- locks: body, lease

ALTER TABLE pulse_internal.body ADD COLUMN note text NOT NULL DEFAULT '';

CREATE TABLE pulse_internal.region (
    region text COLLATE "C" NOT NULL,
    CONSTRAINT region_is_named_once PRIMARY KEY (region)
);

COMMENT ON TABLE pulse_internal.region IS
'Where workers are.';

ALTER TYPE pulse.claimed ADD ATTRIBUTE note text;
