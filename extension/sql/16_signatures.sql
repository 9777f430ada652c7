-- How a verb knows its caller (11_access.sql says why it has to be so): the public form
-- signs with the rights of its caller, the _do_ form redeems the signature.

CREATE FUNCTION pulse._sign()
RETURNS pulse._signature
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_signature pulse._signature;
BEGIN
    INSERT INTO pulse._signing_form
    DEFAULT VALUES
    RETURNING signature INTO v_signature;
    IF v_signature IS NULL THEN
        PERFORM pulse._raise_replica();
    END IF;
    RETURN v_signature;
END;
$$;

COMMENT ON FUNCTION pulse._sign() IS
'A signature of the role that calls.';

-- Of this transaction and once: what one caller signed is of no use to another.
CREATE FUNCTION pulse._redeem(signature pulse._signature)
RETURNS integer
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_signer name;
BEGIN
    DELETE FROM pulse.signature AS s
    WHERE s.signature = _redeem.signature
        AND s.transaction = pg_current_xact_id()
    RETURNING s.signer INTO v_signer;

    IF NOT FOUND THEN
        PERFORM pulse._raise(
            'PU012',
            'this call is not signed',
            'A signature is good for one call in the transaction that made it.',
            'Call the function without a signature: it signs for you.'
        );
    END IF;
    RETURN pulse._role_number(v_signer);
END;
$$;

COMMENT ON FUNCTION pulse._redeem(pulse._signature) IS
'The role that signed; PU012 when nobody did.';

CREATE VIEW pulse._signing
WITH (security_barrier)
AS
SELECT
    s.signature,
    s.signer
FROM pulse.signature AS s
WHERE false;

ALTER VIEW pulse._signing ALTER COLUMN signer SET DEFAULT current_user;

COMMENT ON VIEW pulse._signing IS
'What is signed, and by whom.';

COMMENT ON COLUMN pulse._signing.signature IS
'Made by the trigger, whatever was given.';

COMMENT ON COLUMN pulse._signing.signer IS
'The role that signs.';

CREATE VIEW pulse._signing_form
WITH (security_barrier)
AS
SELECT s.signature
FROM pulse._signing AS s;

COMMENT ON VIEW pulse._signing_form IS
'Where a caller signs.';

COMMENT ON COLUMN pulse._signing_form.signature IS
'Made by the trigger, whatever was given.';

CREATE FUNCTION pulse._keep_signature()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO pulse.signature (signer, transaction)
    VALUES (new.signer, pg_current_xact_id())
    RETURNING signature INTO new.signature;
    RETURN new;
END;
$$;

COMMENT ON FUNCTION pulse._keep_signature() IS
'Keep who signs until the verb asks.';

CREATE TRIGGER signature_is_kept
INSTEAD OF INSERT ON pulse._signing
FOR EACH ROW EXECUTE FUNCTION pulse._keep_signature();
