# Bare `make` prints this help.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# As the lab and the images are built, so that each package is compiled once.
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath
# The toolchain line of go.mod holds, also where the environment names another.
export GOTOOLCHAIN := auto

CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ironlb
TOOLS   := $(CACHE)/bin
# `make lint` vets.
REPORT  := go run ./test/report go test -vet=off
PROGRAMS := ./cmd/ironlb-ccm ./cmd/ironlb-speaker ./cmd/ironlb-bgpd ./cmd/kubectl-ironlb

# Modules of the programs that the project builds with and tests against; each has versions of its own.
TOOL_MODULES := test/deploy/oldest test/tools test/tools/apidoc test/tools/containerd test/tools/coredns test/tools/helm3 test/tools/helm4 test/tools/metallb test/tools/metallb/frrk8s test/tools/vuln

# The vulnerability database as a module: the Go module proxy has it, and the checksum database verifies it. A newer one:
# `go list -m golang.org/x/vulndb@latest`.
VULNDB := golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018

# The steps of a target build on one another, so -j does not reorder them.
.NOTPARALLEL:

# Tests that need IPVS run in a guest kernel where this machine's has none.
KERNEL_TESTS := ./ipvs/kernel ./cmd/ironlb-speaker
# Cases whose families differ in nothing that IPVS does: nftables runs both, the guest IPv4 alone, since it takes long.
ONE_FAMILY   := TestPackets/IPv6/(gone|handshake)
# Cases that count retransmissions fail in a guest that gets little time.
RETRANSMIT   := TestPackets/IPv4/handshake
# Tests of ./cmd/ironlb-speaker that use no kernel run natively alone.
PURE         := ^Test(AwaitEnd|BadFlags|Config|DetectLocalFaults|FollowKeys|KeepPolicies|MetricsAreDocumented|Pairing|ReadKeys|Snapshot|Version)
# Tests of ./ipvs/direct in which the virtual servers matter: these run with IPVS, too.
SECOND_TIER  := ^Test(OwnerMoves|WayBack|SecondChance|NotTracked|TablesDisagree|InternalClients|LargeDatagrams|LargeSegments|SmallPathToClient|Closed|OwnerWithoutEndpoints|NoEndpoint|HostNetwork|Affinity)$$
# The same of ./ipvs/returnroute.
RETURN_TIER  := ^Test(ReturnRoute|ClientsOfNodeNetworks|KernelAnswers|HostNetwork)$$
# LAB_TESTS need a real control plane. BGP_TESTS talk to BIRD and FRR.
LAB_TESTS     = $$(go list ./test/lab/... | grep -v -e /router -e guest$$) ./test/ccm/... ./test/deploy/live ./test/e2e/privileges
BGP_TESTS    := ./test/lab/router ./speaker/bfd ./speaker/bgp/gobgp ./cmd/ironlb-bgpd ./test/e2e/bgp
# Tests of test/e2e/proxy that no data plane sees differently: they run on nftables alone, since a guest takes long.
ANY_DATAPLANE := ^Test(DetectLocalMode|Finalizer|Healthz|Hints|PodsNotCovered|ReadyBeforeItListens|ServiceProxyName|TenantTakesNothing|WithoutNodePorts)$$
# The same of test/e2e.
ANY_DATAPLANE_E2E := ^Test(Manifests|NodeDies|PoolValidation|RefusedRequests|SharedAddress|Spread)$$|^TestSpeakerRestart$$/(another|SIG)
NATIVE_TESTS  = $$(go list ./... | grep -v -e /test/deploy/live -e /test/lab -e /test/ccm -e /test/e2e -e /ipvs/kernel -e /speaker/bfd -e /speaker/bgp/gobgp -e /cmd/ironlb-bgpd)

.PHONY: help
help: ## print this help
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the programs into ./bin
	go build -trimpath -tags=grpcnotrace -ldflags='-s -w $(STAMP)' -o bin/ $(PROGRAMS)

# Names of images. The default registry exists on no network, so no other party can publish under it.
REGISTRY ?= localhost/ironlb
TAG      ?= v0.1.0
IMAGES   := bin/tools/images

# What the programs print as their version: TAG, and the commit of this checkout, with -dirty if it has changes.
COMMIT  ?= $(shell git describe --always --abbrev=40 --exclude='*' --dirty 2>/dev/null || echo unknown)
VERSION := github.com/ironlb/ironlb/cmd/internal/version
STAMP    = -X $(VERSION).tag=$(TAG) -X $(VERSION).commit=$(COMMIT)

.PHONY: images
images: images-tool ## build the images into ./bin/images, for amd64 and arm64, without a daemon: REGISTRY=... TAG=...
	@$(IMAGES) build -registry '$(REGISTRY)' -tag '$(TAG)' -commit '$(COMMIT)' deploy/images/ironlb-*.yaml

.PHONY: images-push
images-push: images-tool ## push what `make images` built to a registry, with its SBOMs: REGISTRY=registry.example.com/ironlb
	@$(IMAGES) push -registry '$(REGISTRY)' $(if $(filter file,$(origin TAG)),,-tag '$(TAG)')

.PHONY: images-check
images-check: images-tool ## build the images twice and compare them; FLAGS=-cold compiles everything again
	@$(IMAGES) check $(FLAGS) -commit '$(COMMIT)' deploy/images/ironlb-*.yaml

.PHONY: images-doc
images-doc: images ## docs/reference/images.md: packages and sizes, as built
	@$(IMAGES) doc deploy/images/ironlb-*.yaml >bin/images/images.md
	@cp bin/images/images.md docs/reference/images.md

.PHONY: images-tool
images-tool:
	@go -C deploy/images build -o ../../$(IMAGES) .

.PHONY: deps
deps: ## install the Debian packages that the lab, the demo and the tests need (root)
	@test/lab/packages.sh

.PHONY: root
root:
	@((EUID == 0)) || { echo 'not root: network namespaces need it; run this as root' >&2; exit 1; }

.PHONY: demo
demo: root deps ## a cluster of three nodes on this machine: a Service, its address, a dead node (root)
	@echo 'building the demo, which takes minutes the first time'
	@go run ./test/lab/cmd/lab demo

.PHONY: demo-shell
demo-shell: root deps ## the same cluster, left up with KUBECONFIG set until you type exit (root)
	@echo 'building the demo, which takes minutes the first time'
	@go run ./test/lab/cmd/lab shell

.PHONY: test-unit
test-unit: ## the tests that need neither root nor packages
	@$(REPORT) -short ./...
	@go -C deploy/images test -short ./...
	@go -C test/deploy/oldest test ./...

# TESTS have limits on how soon clients are served again, so they run one after the other. BACKGROUND_TESTS wait for
# conditions. They run at the same time, with low priority, which does not apply between the kubelets of both: each
# node has a cpu cgroup of its own. So test-upstream, which keeps its nodes busy, is last.
TESTS            := test-native test-bgp test-failover test-e2e test-proxy test-installed test-paused \
	test-proxy-ipvs test-e2e-ipvs test-retransmit test-upstream
BACKGROUND_TESTS := test-kernel test-lab test-alongside test-images

# An emulated guest next to other work needs less time with one processor.
test-kernel test-retransmit: export IRONLB_LAB_CPUS := 1

.PHONY: test
test: root deps programs ## everything, with the guest kernel, complete clusters, and routers: an hour (root)
	@go run ./test/targets -background '$(BACKGROUND_TESTS)' $(TESTS)

.PHONY: programs
programs:
	@go run ./test/lab/cmd/lab build

.PHONY: test-pools
test-pools: ## allocation and the API kinds, 1 minute
	@$(REPORT) ./pools/...

.PHONY: test-ccm
test-ccm: root deps ## ironlb-ccm, on a real API server (root)
	@$(REPORT) ./ccm/... ./cmd/ironlb-ccm ./test/ccm/...

.PHONY: test-ipvs
test-ipvs: root ## the data planes as far as this kernel has them, 2 minutes; IPVS itself: test-kernel (root)
	@$(REPORT) ./ipvs/...

.PHONY: test-speaker
test-speaker: root deps ## the speaker and its drivers; BGP with routers: test-bgp (root)
	@$(REPORT) -skip '^TestRouter' ./speaker/... ./cmd/ironlb-speaker

.PHONY: test-native
test-native: root ## unit tests, and those that need network namespaces (root)
	@$(REPORT) $(NATIVE_TESTS)

.PHONY: test-images
test-images: ## the builder of the images, and the CRDs with the oldest Kubernetes
	@go -C deploy/images test ./...
	@go -C test/deploy/oldest test ./...

.PHONY: test-kernel
test-kernel: root ## the tests of the data planes and of the speaker with them, in a guest where this kernel has no IPVS: 20 minutes if it is emulated (root)
	@go build -o $(TOOLS)/guest ./test/lab/cmd/guest
	@$(TOOLS)/guest with -- $(REPORT) -count=1 -p 1 -timeout 40m -skip '$(ONE_FAMILY)|$(RETRANSMIT)|$(PURE)' -exec '$(TOOLS)/guest exec --' $(KERNEL_TESTS)
	@IRONLB_DATAPLANE=ipvs $(TOOLS)/guest with -- $(REPORT) -count=1 -timeout 40m -parallel 1 -run '$(SECOND_TIER)' -exec '$(TOOLS)/guest exec --' ./ipvs/direct
	@IRONLB_DATAPLANE=ipvs $(TOOLS)/guest with -- $(REPORT) -count=1 -timeout 20m -parallel 1 -run '$(RETURN_TIER)' -exec '$(TOOLS)/guest exec --' ./ipvs/returnroute
	@$(TOOLS)/guest with -- $(REPORT) -count=1 -run '^Test(VLAN|Bond)$$' -exec '$(TOOLS)/guest exec --' ./speaker/l2
	@$(REPORT) -count=1 -p 1 ./test/lab/guest ./test/lab/cmd/guest

.PHONY: test-retransmit
test-retransmit: root ## the cases of test-kernel that count retransmissions (root)
	@go build -o $(TOOLS)/guest ./test/lab/cmd/guest
	@$(TOOLS)/guest with -- $(REPORT) -count=1 -run '$(RETRANSMIT)' -exec '$(TOOLS)/guest exec --' ./ipvs/kernel

.PHONY: test-lab
test-lab: root ## the tests of the lab and of ironlb-ccm, on a real control plane (root)
	@IRONLB_LAB_KERNEL=native $(REPORT) -count=1 -p 1 -timeout 40m $(LAB_TESTS)

.PHONY: test-e2e
test-e2e: root ## end to end, on nftables: 3 minutes (root)
	@IRONLB_DATAPLANE=nftables $(REPORT) -count=1 -timeout 15m ./test/e2e

.PHONY: test-e2e-ipvs
test-e2e-ipvs: root ## end to end, with IPVS, as far as the data plane matters (root)
	@$(REPORT) -count=1 -timeout 40m -skip '$(ANY_DATAPLANE_E2E)' ./test/e2e

.PHONY: test-proxy-ipvs
test-proxy-ipvs: root ## as the only service proxy, with IPVS (root)
	@$(REPORT) -count=1 -timeout 40m -skip '$(ANY_DATAPLANE)' ./test/e2e/proxy

.PHONY: test-proxy
test-proxy: root ## as the only service proxy, on nftables (root)
	@IRONLB_DATAPLANE=nftables $(REPORT) -count=1 -timeout 15m ./test/e2e/proxy -args -rate 100

.PHONY: test-alongside
test-alongside: root ## alongside kube-proxy, on nftables; IPVS and the other modes: test-kube-proxy (root)
	@IRONLB_DATAPLANE=nftables $(REPORT) -count=1 -timeout 15m ./test/e2e/kubeproxy

.PHONY: test-failover
test-failover: root ## failover, unreachable endpoints and broken connections end to end on nftables: 15 minutes (root)
	@$(REPORT) -count=1 -p 1 -timeout 25m ./test/e2e/failover ./test/e2e/unreachable ./test/e2e/direct

# Without TestDisturbed: the lines of a client in an emulated guest are too rare to show slots that are repaired at once.
.PHONY: test-direct-ipvs
test-direct-ipvs: root deps ## connections that break with forwarding direct, with IPVS: 7 minutes if its kernel is emulated (root)
	@IRONLB_DATAPLANE=ipvs $(REPORT) -count=1 -timeout 40m -run '^Test(Pod|Direct)$$' ./test/e2e/direct

.PHONY: test-paused
test-paused: root ## a node that is a paused virtual machine (root)
	@$(REPORT) -count=1 -timeout 25m ./test/e2e/paused

.PHONY: test-installed
test-installed: root ## as installed: chart and images on nodes with kubelets, and what clients lose while parts fail (root)
	@$(REPORT) -count=1 -timeout 25m -skip '$(SLOW_FAULTS)' ./test/e2e/installed

# Roll-outs that "chart upgraded" covers as well, a deletion that TestPodsReplaced has on all nodes, and a drain, whose
# Pods end under the load of the other tests.
SLOW_FAULTS := TestChaos/((ironlb-ccm|ironlb-speaker|kube-proxy)_rolled_out|ironlb-bgpd_Pod_deleted|kubectl_drain)

.PHONY: chaos
chaos: root deps ## the tables of what clients lose while each part of a cluster fails or is replaced, or a link is one-way: half an hour, ROUNDS=1 ten minutes (root)
	@go test -count=1 -v -timeout 60m -run '^Test(Chaos|OneWay)$$' ./test/e2e/installed -args -rounds $(or $(ROUNDS),10) -within 1s

.PHONY: chaos-connections
chaos-connections: root deps ## the table of connections that break while owners, routes and endpoints change, for each way of forwarding; an hour, FLAGS='-modes pod -networks lan' less (root)
	@go run ./test/bench/connections $(FLAGS)

.PHONY: test-kube-proxy
test-kube-proxy: root deps ## alongside a real kube-proxy of each mode, ipvs included: a quarter of an hour and more where the guest is emulated (root)
	@$(REPORT) -count=1 -timeout 60m ./test/e2e/kubeproxy

.PHONY: bench-pools
bench-pools: ## the allocator alone
	@go test -run '^$$' -bench . -benchmem ./pools

.PHONY: bench-ccm
bench-ccm: root deps ## ironlb-ccm compared with a bare load generator on a real API server, and its restart with 5,000 Services (root)
	@go run ./test/bench/ccm

.PHONY: bench-ipvs
bench-ipvs: root deps ## the data planes compared with kube-proxy's ipvs and nftables, in one guest: 100, 1,000 and 5,000 Services; an hour and a half where it is emulated, FLAGS='-services 100,1000' a quarter of that (root)
	@go run ./test/bench/ipvs $(FLAGS)

.PHONY: bench-idle
bench-idle: root deps ## CPU and memory of idle processes at 0, 1,000 and 5,000 Services, compared with kube-proxy and MetalLB; half an hour, FLAGS='-services 13 -peers ironlb -threads' less (root)
	@go run ./test/bench/idle $(FLAGS)

.PHONY: bench-scale
bench-scale: root ## one ironlb-speaker with 1,000, 5,000 and 10,000 Services: start, memory, idle, change, repair; five minutes, FLAGS='-services 1000' less (root)
	@go run ./test/bench/scale $(FLAGS)

.PHONY: bench-direct
bench-direct: root deps ## forwarding direct compared with pod under load: requests per second, p99, CPU time, bytes through the owner; 5 minutes, FLAGS='-rounds 1 -sizes 1000' less (root)
	@go run ./test/bench/direct $(FLAGS)

.PHONY: bench-l2
bench-l2: root ## what foreign ARP and neighbour discovery cost, and how fast an owned address is answered (root)
	@go test -run '^$$' -bench Foreign -benchtime 50000x ./speaker/l2
	@go test -run '^$$' -bench 'Answer|Announce' -benchtime 2000x ./speaker/l2

.PHONY: bench-heal
bench-heal: root ## how long until what another program flushes or edits is restored, in the lab (root)
	@go test -run '^$$' -bench HarmIsHealed -benchtime 10x -timeout 30m ./test/e2e

.PHONY: bench-liveness
bench-liveness: root ## how soon and how wrongly dead nodes are found, compared with memberlist; a quarter of an hour, FLAGS='-rounds 5 -watch 0' less (root)
	@cd test/bench/liveness && go run . $(FLAGS)

.PHONY: bench-starved
bench-starved: root deps ## stalls and moves of speakers with the CPU shares of a small request alongside 13 busy loops; FLAGS='-shares 51 -watch 1h' (root, cgroup v1)
	@go run ./test/bench/starved $(FLAGS)

.PHONY: bench-failover
bench-failover: root deps ## what clients notice when a node fails or leaves, compared with keepalived and MetalLB; a day, ROWS=pods FLAGS='-rounds 1 -peers standard,metallb -faults power-off-owner' less (root)
	@for rows in $(or $(ROWS),address pods); do go run ./test/bench/failover -rows $$rows $(FLAGS); done

.PHONY: bench-sim
bench-sim: ## 100 speakers and 2,000 VirtualIPs by simulation: detection, traffic, false alarms, balance, CPU, unreachable nodes; three hours or so, FLAGS='-rounds 2 -watch 10s -long 2m -profiles standard' less; 1,000 nodes as in docs/performance.md
	@go run ./test/bench/sim $(FLAGS)

.PHONY: test-bgp
test-bgp: root deps ## BGP and BFD with BIRD and FRR, and end to end, natively on nftables, on a real control plane: 10 minutes (root)
	@$(REPORT) -count=1 -p 1 -timeout 25m $(BGP_TESTS)

.PHONY: test-upstream
test-upstream: root deps ## a subset of upstream's tests of Services, on nodes with real kubelets: 5 minutes (root)
	@$(REPORT) -short ./test/e2e/upstream
	@go run ./test/e2e/upstream -subset -out bin/e2e-upstream/subset

.PHONY: e2e-upstream
e2e-upstream: root deps ## upstream's tests of Services, all configurations: two hours and a quarter, CONFIGS='a b' or FLAGS='-specs REGEXP' less (root)
	@go run ./test/e2e/upstream -configurations '$(CONFIGS)' $(FLAGS)

.PHONY: test-soak
test-soak: root deps ## what make test does with fewer rounds: ironlb-ccm killed 250 times, speakers 40 times, and ten minutes next to MetalLB; an hour (root)
	@$(REPORT) -count=1 -timeout 60m -run TestCrash ./test/ccm -args -kills 200
	@$(REPORT) -count=1 -timeout 60m -run TestSpeakers ./test/e2e/unreachable -args -kills 40
	@$(REPORT) -count=1 -timeout 60m ./test/e2e/metallb -args -churn 10m

.PHONY: test-privileges
test-privileges: root deps ## remove each capability and each RBAC rule, one at a time: which check fails; 10 to 15 minutes (root)
	@mkdir -p bin && rm -f bin/privileges.md
	@status=0; $(REPORT) -count=1 -timeout 60m ./test/e2e/leastprivilege -args -table '$(CURDIR)/bin/privileges.md' || status=$$?; \
	cat bin/privileges.md; exit $$status

.PHONY: bench-bgp
bench-bgp: root deps ## how soon BIRD and FRR know of an endpoint, a dead node, 10,000 prefixes; false alarms of BFD on busy cores; an hour, FLAGS='-rounds 5 -updates 20 -tables 1' MINUTES=5 less (root)
	@go run ./test/bench/bgp $(FLAGS)
	@go run ./test/bench/bfd -minutes $(or $(MINUTES),30)

.PHONY: generate
generate: tools images-tool ## CRDs, deep copies and docs/reference/api.md from pools/v1alpha1, plain manifests and README from the chart
	$(TOOLS)/controller-gen object paths=./pools/v1alpha1
	$(TOOLS)/controller-gen crd paths=./pools/v1alpha1 output:crd:dir=deploy/chart/ironlb/crds
	$(TOOLS)/crd-ref-docs --source-path=./pools/v1alpha1 --config=docs/reference/api.yaml --renderer=markdown --log-level=ERROR --output-path=docs/reference/api.md
	go run ./test/deploy/render
	$(IMAGES) dockerfile deploy/images/ironlb-*.yaml >bin/Dockerfile
	cmp -s bin/Dockerfile deploy/images/Dockerfile || cp bin/Dockerfile deploy/images/Dockerfile

.PHONY: tidy
tidy:
	go mod tidy
	for m in $(TOOL_MODULES); do go -C $$m mod tidy; done
	go -C deploy/images mod tidy

.PHONY: lint
lint: tools ## gofmt, go vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go') | tee /dev/stderr)" || { echo 'run: gofmt -w on the files above' >&2; exit 1; }
	go vet ./...
	$(TOOLS)/staticcheck ./...
	cd deploy/images && go vet ./... && $(TOOLS)/staticcheck ./...
	cd test/deploy/oldest && go vet ./... && $(TOOLS)/staticcheck ./...

.PHONY: vulncheck
vulncheck: tools ## fail on a known vulnerability that the programs call and test/vulncheck/accepted.txt lacks: 2 minutes
	@db=$$(cd test/tools/vuln && go mod download -json $(VULNDB) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && [ -d "$$db" ] || \
		{ echo 'no vulnerability database: the Go module proxy does not give $(VULNDB)' >&2; exit 1; }; \
	$(TOOLS)/govulncheck -format json -db "file://$$db/data/osv" -tags=grpcnotrace $(PROGRAMS) | go run ./test/vulncheck test/vulncheck/accepted.txt

.PHONY: verify
verify: ## what must hold for every commit: generated files, go.mod, format and lint are clean, and no new vulnerability
	@before=$$(git status --porcelain; git diff | git hash-object --stdin); \
	$(MAKE) generate tidy lint vulncheck; \
	after=$$(git status --porcelain; git diff | git hash-object --stdin); \
	[ "$$before" = "$$after" ] || { git --no-pager diff --stat; echo 'generated files or go.mod were not up to date: commit the changes above' >&2; exit 1; }

# As pinned in test/tools/go.mod; go builds again only what is not up to date.
.PHONY: tools
tools:
	@go -C test/tools build -o $(TOOLS)/ sigs.k8s.io/controller-tools/cmd/controller-gen honnef.co/go/tools/cmd/staticcheck
	@go -C test/tools/apidoc build -o $(TOOLS)/ github.com/elastic/crd-ref-docs
	@go -C test/tools/vuln build -o $(TOOLS)/ golang.org/x/vuln/cmd/govulncheck
