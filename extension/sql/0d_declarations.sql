-- What applications declare beside their code. declared is what was asked for; applied is
-- how that reads in the settings of the kind or in the schedule, NULL where it was never
-- written because another role had made one: what differs from it now is drift.
CREATE TABLE pulse.declaration (
    item text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    application text COLLATE "C" NOT NULL,
    declared jsonb NOT NULL,
    applied jsonb,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT declaration_has_one_owner PRIMARY KEY (item, name),
    CONSTRAINT declaration_is_of_a_known_item CHECK (item IN ('kind', 'schedule'))
);

COMMENT ON TABLE pulse.declaration IS
'Settings of kinds and schedules that an application declares, and how they were written.';
