INSERT INTO bare.job (kind, payload)
VALUES (
    'bench',
    '{"pad": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'
)
RETURNING id;
