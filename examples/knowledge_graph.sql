-- The lanes and kinds of a knowledge-graph platform. Run it once, as an operator; run
-- again it changes nothing:
--
--     psql -1 -f examples/knowledge_graph.sql
--
-- People wait for what is interactive, so that lane has its own two slots and nothing can
-- fill them from outside. Maintenance and system work runs one job at a time, in order.

SELECT pulse.set_lane(
    'interactive', max_slots => 2, poll_interval => '2 s', max_runtime => '30 min'
);
SELECT pulse.set_lane(
    'maintenance', max_slots => 1, poll_interval => '15 s', max_runtime => '60 min'
);
SELECT pulse.set_lane(
    'system', max_slots => 1, poll_interval => '30 s', max_runtime => '120 min'
);

SELECT pulse.set_kind(k.kind, lane => k.lane)
FROM (
    VALUES
    ('ingestion', 'interactive'),
    ('ingest_image', 'interactive'),
    ('polarity', 'interactive'),
    ('projection', 'maintenance'),
    ('vocab_refresh', 'maintenance'),
    ('epistemic_remeasurement', 'maintenance'),
    ('ontology_annealing', 'maintenance'),
    ('proposal_execution', 'maintenance'),
    ('restore', 'system'),
    ('vocab_consolidate', 'system'),
    ('artifact_cleanup', 'system'),
    ('source_embedding', 'system')
) AS k (kind, lane);
