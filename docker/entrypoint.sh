#!/bin/sh
# Start PostgreSQL; at the first start make the cluster and install pulse with its watchdog.
#   POSTGRES_PASSWORD   of the superuser postgres, over TCP (required at the first start)
#   POSTGRES_DB         the database that gets pulse and pg_cron (default: postgres)
set -eu

database=${POSTGRES_DB:-postgres}

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?set POSTGRES_PASSWORD for the first start}"
    password=$(mktemp)
    printf '%s\n' "$POSTGRES_PASSWORD" > "$password"
    initdb -U postgres -E UTF8 --locale=C.UTF-8 \
        --auth-local=trust --auth-host=scram-sha-256 --pwfile="$password"
    rm -f "$password"
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    cat >> "$PGDATA/postgresql.conf" <<CONF
listen_addresses = '*'
unix_socket_directories = '/var/run/postgresql'
shared_preload_libraries = 'pg_cron'
cron.database_name = '$database'
cron.host = '/var/run/postgresql'
CONF
    pg_ctl -w -o "-c listen_addresses=''" start
    [ "$database" = postgres ] || createdb -h /var/run/postgresql "$database"
    psql -h /var/run/postgresql -d "$database" -v ON_ERROR_STOP=1 \
        -c 'CREATE EXTENSION pg_cron' -c 'CREATE EXTENSION pulse' \
        -c 'SELECT pulse.start_watchdog()'
    pg_ctl -w -m fast stop
fi

exec postgres "$@"
