# The front door. `make test` works on a fresh machine with Python 3.10 and make.

PYTHON ?= python3
RUN = .venv/bin/python
# K="unique_keys and pg18" chooses tests by name, as pytest -k does.
CHOSEN = $(if $(K),-k "$(K)")

.PHONY: help setup demo build install lint format check test test-slow test-sql test-isolation protocols \
	test-engine test-python test-project isolation-accept chaos chaos-nodes ha mutations flows-stress model soak upgrade-load bench-sql \
	bench-compare bench-groups bench-counters bench-nodes bench-standby bench-python api reference release next-version clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## Get PostgreSQL, pg_cron, pgTAP and the Python tools; quick when all is there
	@$(PYTHON) -m tools.setup

demo: build  ## A mixed load on an embedded PostgreSQL, worked and shown; needs no root
	@$(PYTHON) -m tools.demo

build:  ## Join the parts: extension, plain script and pg_tle script in extension/build
	@$(MAKE) --no-print-directory -s -C extension

install: build  ## Install the extension (PG_CONFIG chooses the server)
	@$(MAKE) --no-print-directory -C extension install

lint: setup build  ## Check the style of SQL, Python and the Dockerfile
	@$(RUN) -m tools.lint

format: setup  ## Lay out the Python files and write the sync twins as `make lint` wants them
	@$(RUN) -m tools.twins
	@.venv/bin/ruff format --quiet .
	@.venv/bin/ruff check --quiet --fix .

check: setup build  ## The quick loop: lint and tests of what changed against BASE=main
	@$(RUN) -m tools.check $(BASE)

test: setup build  ## Everything that has to hold, and lint; ends with a summary
	@$(RUN) -m tools.suite -m "not slow" $(CHOSEN)

test-slow: setup build  ## What takes minutes and is not in `make test` (K=name)
	@$(RUN) -m pytest --summary -n 2 --dist loadfile -m slow $(CHOSEN)

test-sql: setup build  ## The pgTAP files (K=unique_keys, K="unique_keys and pg18")
	@$(RUN) -m pytest tests/sql $(CHOSEN)

test-isolation: setup build  ## The isolation specs (K=name)
	@$(RUN) -m pytest tests/isolation tests/mutations $(CHOSEN)

test-engine: setup build  ## The engine as a whole: plans, stress, dump, upgrade (K=name)
	@$(RUN) -m pytest tests/engine tests/upgrade $(CHOSEN)

test-python: setup build  ## The Python package: worker, command line, web, Django (K=name)
	@$(RUN) -m pytest tests/python tests/cli tests/web tests/django $(CHOSEN)

test-project: setup build  ## Docs, examples, benches, versions and tools (K=name)
	@$(RUN) -m pytest tests/project $(CHOSEN)

isolation-accept: setup build  ## Write the expected output of one spec anew (SPEC=name)
	@$(RUN) -c 'from tests import isolation; isolation.accept("$(SPEC)")'

chaos: setup build  ## Break everything under load, then check the history (CHAOS_SECONDS, CHAOS_SEED)
	@PYTHONPATH=.:python $(RUN) -m tests.chaos.run --seconds $(or $(CHAOS_SECONDS),120) \
		$(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) $(if $(CHAOS_RATE),--rate $(CHAOS_RATE)) \
		$(if $(CHAOS_FAULTS),--faults $(CHAOS_FAULTS))

chaos-nodes: setup build  ## Three databases and their workers under faults (CHAOS_JOBS, CHAOS_SEED)
	@PYTHONPATH=.:python $(RUN) -m tests.chaos.nodes --jobs $(or $(CHAOS_JOBS),51000) \
		$(if $(CHAOS_SEED),--seed $(CHAOS_SEED))

ha: setup build  ## Patroni and etcd, three servers: a switchover, a dead leader, what it costs
	@PYTHONPATH=.:python $(RUN) -m tests.ha.failover

mutations: setup build  ## Take each rule out of pulse and see that its specs fail (K=word)
	@PYTHONPATH=.:python $(RUN) -m tests.mutations $(K)

flows-stress: setup build  ## Flows under load for a minute, then with each mutation of flows (SECONDS)
	@PYTHONPATH=.:python $(RUN) -m tests.engine.flows_stress --seconds $(or $(SECONDS),60) --mutation all

model: setup build  ## Random histories against the model, and the pairs they met (SECONDS, SEED, PLANTED=all)
	@PYTHONPATH=.:python $(RUN) -m tests.engine.model --seconds $(or $(SECONDS),300) \
		$(if $(SEED),--seed $(SEED)) $(if $(PLANTED),--planted "$(PLANTED)")

protocols: setup  ## Every interleaving of the three hardest protocols, larger bounds too (K=name)
	@$(RUN) -m pytest tests/model -v $(CHOSEN)

soak: setup build  ## Upkeep of a million jobs, a worker that runs a million (SOAK_JOBS)
	@PYTHONPATH=.:python $(RUN) -m tests.chaos.soak --jobs $(or $(SOAK_JOBS),1000000)

upgrade-load: setup build  ## Upgrade a queue while jobs run through it (PULSE_LOAD)
	@PULSE_LOAD=$(or $(PULSE_LOAD),100000) $(RUN) -m pytest tests/upgrade/test_live.py -s $(CHOSEN)

bench-sql: setup build  ## Measure the engine with pgbench (ONLY=e,c; see bench/README.md)
	@$(RUN) -m bench.run_sql $(if $(ONLY),--only $(ONLY))

bench-compare: setup build  ## CPU of each verb before and after, in one run (BASE=main)
	@$(RUN) -m bench.compare --base $(or $(BASE),main) $(if $(ONLY),--only $(ONLY))

bench-groups: setup build  ## CPU of a job in lanes with groups, before and after (BASE=main)
	@PYTHONPATH=.:python $(RUN) -m bench.groups $(if $(BASE),--base $(BASE)) $(if $(ONLY),--only "$(ONLY)")

bench-counters: setup build  ## CPU of each verb with and without its counting, in one run
	@$(RUN) -m bench.counters $(if $(ONLY),--only $(ONLY))

bench-nodes: setup build  ## CPU of a job with one worker over 1, 2 and 4 databases (NODES=1,8)
	@PYTHONPATH=.:python $(RUN) -m bench.nodes --nodes $(or $(NODES),1,2,4)

bench-standby: setup build  ## CPU and WAL of a job on a primary, CPU of its replay on a standby
	@PYTHONPATH=.:python $(RUN) -m bench.standby

bench-python: setup build  ## Measure the Python worker beside its peers (ONLY=pulse,pgqueuer)
	@$(RUN) -m bench.run_python $(if $(ONLY),--only "$(ONLY)")

api: setup build  ## Write extension/api.txt, the public API, from the catalog
	@$(RUN) -m tools.api $(ARGS)

reference: setup build  ## Write docs/reference.md from the comments in the catalog
	@$(RUN) tools/reference.py $(ARGS)

release: setup build  ## Check and date the release (VERSION=1.0); says what to do next
	@$(RUN) -m tools.release release $(VERSION)

next-version: setup build  ## After the tag: freeze what was released, begin VERSION=1.1
	@$(RUN) -m tools.release next $(VERSION)

clean:  ## Remove what was built and what was set up
	@$(MAKE) --no-print-directory -s -C extension clean
	@$(PYTHON) -m tools.setup --clean
