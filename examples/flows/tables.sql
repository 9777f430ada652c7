-- The tables of the two examples.
CREATE SCHEMA shop;

CREATE TABLE shop.shipment (
    order_id bigint PRIMARY KEY,
    shipped_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE shop.staged (
    import text,
    part integer,
    lines text [] NOT NULL,
    PRIMARY KEY (import, part)
);

CREATE TABLE shop.sale (
    import text,
    line integer,
    sku text NOT NULL,
    cents bigint NOT NULL,
    PRIMARY KEY (import, line)
);

CREATE TABLE shop.total (
    import text PRIMARY KEY,
    sales bigint NOT NULL,
    cents bigint NOT NULL
);

-- Stand-ins for what is elsewhere: a payment service and a mail service. Both are asked with
-- a key, and answer a repeated request as they did the first.
CREATE TABLE shop.payment (
    key text PRIMARY KEY,
    order_id bigint NOT NULL,
    cents bigint NOT NULL
);

CREATE TABLE shop.mail (
    key text PRIMARY KEY,
    subject text NOT NULL
);
