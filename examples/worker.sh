#!/usr/bin/env bash
# worker.sh LANE COMMAND [ARGUMENT...]: run COMMAND for each job of LANE, one after the other.
# It gets the job as JSON on stdin; its stdout becomes the result, or its stderr the error.
set -um; lane=$1 beat=${HEARTBEAT:-10} lease='' run='' text='' stop='' dir=$(mktemp -d); shift
trap 'stop=1; [ -z "$run" ] || kill -- "-$run"' TERM INT; trap 'rm -r "$dir"' EXIT
sql() { psql -XqAtF ' ' -v me="$HOSTNAME:$$" -v lane="$lane" -v beat="$beat" -v lease="$lease" -v text="$text" <<< "$1"; }
text() { text=$(head -c 100000 "$dir/$1" | iconv -cf UTF-8 -t UTF-8 | tr -d '\0'); }
beats() { while sleep "$beat"; do case $(sql "SELECT verdict FROM pulse.heartbeat(ARRAY[:'lease'::bigint])") in
  lost | cancel | deadline) kill -- "-$run" ;; esac; done; }
claim="SELECT pulse.hello(:'me', ARRAY[:'lane']), count(*) FROM pulse.tick() \g /dev/null
  SELECT c.lease, to_jsonb(c) - 'lease' || jsonb_build_object('job_id', c.job_id::text)
  FROM pulse.claim_batch(:'me', :'lane', lease_for => make_interval(secs => 3 * :'beat')) AS c"
until [ "$stop" ]; do text=''; read -r lease job <<< "$(sql "$claim")"
  if [ -z "$lease" ]; then sleep 1 & run=$!; wait $run; run=''; continue; fi
  "$@" <<< "$job" > "$dir/out" 2> "$dir/err" & run=$!; [ -z "$stop" ] || kill -- "-$run"; beats & beats=$!
  while kill -0 "$run" 2>&-; do wait "$run"; done; wait "$run"; code=$?; run=''; { kill -- "-$beats"; wait "$beats"; } 2> /dev/null
  if [ $code = 0 ]; then text out; sql "SELECT pulse.complete(:'lease', to_jsonb(:'text'::text))"
  elif [ "$stop" ]; then sql "SELECT pulse.release(ARRAY[:'lease'::bigint])"
  else text err; sql "SELECT pulse.fail(:'lease', :'text')"; fi > /dev/null
done
