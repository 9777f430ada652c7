-- The manifest: the version, the build and all objects that pulse has, as the build lists them.
-- An upgrade reads the text of this function and calls nothing: in a schema that belongs to
-- another role, the function could be that role's. So the marks around the list stay as they are.

CREATE FUNCTION pulse_internal.manifest()
RETURNS text
LANGUAGE sql
IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT $manifest$
@VERSION@ @BUILD@
@OBJECTS@
$manifest$
$$;

COMMENT ON FUNCTION pulse_internal.manifest() IS
'The version and the build in the first line, then an object of pulse in each line; the build writes it.';
