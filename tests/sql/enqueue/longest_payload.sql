-- Enqueue: a payload that PostgreSQL cannot write as one text.
-- in turn: it takes some seconds, for PostgreSQL writes a gigabyte before it gives up
BEGIN;

SELECT plan(1);

-- The first call of a session: its plans know the payload, and must not compute its text.
-- 8,200 numbers of 131,000 digits are longer than a text can be, which is 1 GB.
SELECT throws_ok(
    'SELECT pulse.enqueue(''k'', to_jsonb(array_fill(1e131000, ARRAY[8200])))',
    'PU003', NULL, 'numbers that are longer than a text can be are too large'
);

SELECT * FROM finish();
ROLLBACK;
