# The tests. `make` lists the targets with the others.

.PHONY: test test-all programs test-unit test-native test-images guest test-kernel test-kernel-rest test-retransmit test-self \
	test-lab test-e2e test-proxy test-alongside test-kube-proxy test-e2e-ipvs test-proxy-ipvs test-direct-ipvs \
	test-failover test-paused test-installed chaos test-bgp test-upstream test-soak test-privileges test-metrics test-ui test-release

# Every change passes `make test`: unit tests, each property once where a user sees it, and IPVS in a guest kernel as far as
# only IPVS can show it. `make test-all` also runs what `make test` skips (package test/rare) and more targets.
# TIMED have limits on how soon clients are served again, or a cluster in an emulated guest: they run one after the other.
# WAIT and IPVS wait for conditions: each is a lane with low priority, the latter what runs in a guest and what evens out.
TIMED     := test-failover test-installed test-bgp
TIMED_ALL := $(TIMED) test-paused test-retransmit test-e2e-ipvs test-proxy-ipvs test-direct-ipvs test-kube-proxy test-upstream test-soak
WAIT      := test-images test-e2e test-proxy test-lab test-native
WAIT_ALL  := $(WAIT) test-release test-self test-privileges test-metrics test-ui
IPVS      := test-kernel test-alongside
IPVS_ALL  := $(IPVS) test-kernel-rest
IRONLB_TEST_ALL ?=
export IRONLB_TEST_ALL

test: root deps programs ## what every change must pass: 20 minutes (root)
	@go run ./test/targets -background '$(WAIT)' -background '$(IPVS)' $(TIMED)

test-all: export IRONLB_TEST_ALL := 1
test-all: root deps programs ## everything, before a large change counts as done (root)
	@go run ./test/targets -background '$(WAIT_ALL)' -background '$(IPVS_ALL)' $(TIMED_ALL)

programs:
	@go run ./test/lab/cmd/lab build

test-unit: ## the tests that need neither root nor packages
	@go test -vet=off -short ./...
	@go -C deploy/images test -short ./...
	@go -C test/deploy/oldest test ./...

# Packages with a control plane, a guest kernel or routers; test-native has all others, the longest first. They wait more
# than they compute.
SELF    := ./test/lab ./test/lab/controlplane ./test/lab/cmd/lab
GUESTS  := ./test/lab/guest ./test/lab/cmd/guest
ROUTERS := ./test/lab/router ./speaker/bfd ./speaker/bgp/gobgp ./cmd/ironlb-bgpd
LAB     := ./test/ccm/... ./test/deploy/live ./test/e2e/privileges
NATIVE   = $$(go list ./... | grep -vxF "$$(go list $(SELF) $(GUESTS) $(ROUTERS) $(LAB) ./test/e2e/... ./test/deploy/release ./ipvs/kernel)")

test-native: root ## unit tests, and those that need network namespaces (root)
	@$(REPORT) -p 3 ./speaker/member $(NATIVE)

test-images: ## the builder of the images, and the CRDs with the oldest Kubernetes
	@go -C deploy/images test ./...
	@go -C test/deploy/oldest test ./...

# An emulated guest next to other work needs less time with one processor.
test-kernel test-kernel-rest test-retransmit: export IRONLB_LAB_CPUS := 1
IN_GUEST := $(TOOLS)/guest with -- $(REPORT) -count=1 -p 1 -timeout 40m -exec '$(TOOLS)/guest exec --'
# Cases that count retransmissions fail in a guest that gets little time.
RETRANSMIT   := TestPackets/IPv4/handshake
# Cases of IPv6 in which IPVS does nothing: nftables decides, natively in both families, here in IPv4.
SAME_IN_IPV6 := TestPackets/IPv6/(unlisted_ports|source_ranges|policies|hostPort|unallocated|invalid|ClusterIP_by|short)
# Cases whose families differ in nothing that IPVS does, which take long.
ONE_FAMILY   := TestPackets/IPv6/(gone|handshake)
# Tests in which IPVS matters, of packages that run natively, too.
WITH_IPVS    := ^Test(DataPlane|Flush|WeightsAreCorrected|DataplaneSwitch|NoClientIsRefusedWhileAServiceComes|MissingSchedulerDoesNotChangeTheDataplane)$$
SECOND_TIER  := ^Test(OwnerMoves|SecondChance)$$
MORE_OF_TIER := ^Test(WayBack|NotTracked|TablesDisagree|InternalClients|LargeDatagrams|LargeSegments|SmallPathToClient|Closed|OwnerWithoutEndpoints|NoEndpoint|HostNetwork|Affinity)$$
RETURN_TIER  := ^Test(ReturnRoute|ClientsOfNodeNetworks|KernelAnswers|HostNetwork)$$

guest:
	@go build -o $(TOOLS)/guest ./test/lab/cmd/guest

test-kernel: root guest ## the data planes, and the speaker with them, in a guest where this kernel has no IPVS (root)
	@$(IN_GUEST) -skip '$(SAME_IN_IPV6)|$(ONE_FAMILY)|$(RETRANSMIT)' ./ipvs/kernel
	@$(IN_GUEST) -run '$(WITH_IPVS)' ./cmd/ironlb-speaker
	@IRONLB_DATAPLANE=ipvs $(IN_GUEST) -parallel 1 -run '$(SECOND_TIER)' ./ipvs/direct

test-kernel-rest: root guest ## what test-kernel leaves out (root)
	@$(IN_GUEST) -run '$(SAME_IN_IPV6)' ./ipvs/kernel
	@$(IN_GUEST) -skip '$(WITH_IPVS)' ./cmd/ironlb-speaker
	@IRONLB_DATAPLANE=ipvs $(IN_GUEST) -parallel 1 -run '$(MORE_OF_TIER)' ./ipvs/direct
	@IRONLB_DATAPLANE=ipvs $(IN_GUEST) -parallel 1 -run '$(RETURN_TIER)' ./ipvs/returnroute
	@$(IN_GUEST) -run '^Test(VLAN|Bond)$$' ./speaker/l2

test-retransmit: root guest ## the cases of test-kernel that count retransmissions (root)
	@$(IN_GUEST) -run '$(RETRANSMIT)' ./ipvs/kernel

test-self: root ## the lab's own tests (root)
	@IRONLB_LAB_KERNEL=native $(REPORT) -count=1 -p 1 -timeout 40m $(SELF)
	@$(REPORT) -count=1 -p 1 -timeout 40m $(GUESTS)

test-lab: root deps ## ironlb-ccm, the chart, the programs' privileges and metrics, on a real control plane (root)
	@IRONLB_LAB_KERNEL=native $(REPORT) -count=1 -p 1 -timeout 40m $(LAB)

test-e2e test-proxy test-alongside: export IRONLB_DATAPLANE := nftables
test-e2e: root ## end to end, on nftables (root)
	@$(REPORT) -count=1 -timeout 25m ./test/e2e

test-proxy: root ## as the only service proxy, on nftables (root)
	@$(REPORT) -count=1 -timeout 25m ./test/e2e/proxy -args -rate 100

test-alongside: root ## alongside kube-proxy, on nftables (root)
	@$(REPORT) -count=1 -timeout 25m ./test/e2e/kubeproxy

test-kube-proxy: root deps ## the same with IPVS, and kube-proxy's modes (root)
	@$(REPORT) -count=1 -timeout 60m ./test/e2e/kubeproxy

# What no data plane sees differently runs on nftables alone, since a guest takes long.
test-e2e-ipvs: root ## end to end, with IPVS (root)
	@$(REPORT) -count=1 -timeout 40m -skip '^Test(Explain|Manifests|PoolValidation|RefusedRequests|SharedAddress)$$' ./test/e2e

test-proxy-ipvs: root ## as the only service proxy, with IPVS (root)
	@$(REPORT) -count=1 -timeout 40m -skip '^Test(DetectLocalMode|Finalizer|Healthz|Hints|PodsNotCovered|ReadyBeforeItListens|ServiceProxyName|TenantTakesNothing|WithoutNodePorts)$$' ./test/e2e/proxy

# Without TestDisturbed: the lines of a client in an emulated guest are too rare to show slots that are repaired at once.
test-direct-ipvs: root deps ## connections that break with forwarding direct, with IPVS (root)
	@IRONLB_DATAPLANE=ipvs $(REPORT) -count=1 -timeout 40m -run '^Test(Pod|Direct)$$' ./test/e2e/direct

test-failover: root ## failover, unreachable endpoints and broken connections, end to end on nftables (root)
	@$(REPORT) -count=1 -p 1 -timeout 40m ./test/e2e/failover ./test/e2e/unreachable ./test/e2e/direct

test-paused: root ## a node that is a paused virtual machine (root)
	@$(REPORT) -count=1 -timeout 25m ./test/e2e/paused

test-installed: root ## as installed: chart and images on nodes with kubelets, and what clients lose while parts fail (root)
	@$(REPORT) -count=1 -timeout 40m ./test/e2e/installed

chaos: root deps ## the tables of what clients lose while each part of a cluster fails or is replaced, or a link is one-way: half an hour, ROUNDS=1 ten minutes (root)
	@IRONLB_TEST_ALL=1 go test -count=1 -v -timeout 60m -run '^Test(Chaos|OneWay)$$' ./test/e2e/installed -args -rounds $(or $(ROUNDS),10) -within 1s

test-bgp: root deps ## BGP and BFD with BIRD and FRR, and end to end (root)
	@$(REPORT) -count=1 -p 1 -timeout 25m $(ROUTERS) ./test/e2e/bgp

test-upstream: root deps ## a subset of upstream's tests of Services, on nodes with real kubelets (root)
	@go test -vet=off -short ./test/e2e/upstream
	@go run ./test/e2e/upstream -subset -out bin/e2e-upstream/subset

test-soak: root deps ## ironlb-ccm killed 250 times, speakers 40 times, ten minutes next to MetalLB, and its Services moved; an hour (root)
	@IRONLB_TEST_ALL=1 $(REPORT) -count=1 -timeout 60m -run TestCrash ./test/ccm -args -kills 200
	@$(REPORT) -count=1 -timeout 60m -run TestSpeakers ./test/e2e/unreachable -args -kills 40
	@$(REPORT) -count=1 -timeout 60m ./test/e2e/metallb -args -churn 10m
	@$(REPORT) -count=1 -timeout 25m ./test/e2e/metallb/migration

test-metrics: root deps ## Debian's Prometheus scrapes all programs, and alerts fire (root)
	@$(REPORT) -count=1 -timeout 25m ./test/e2e/metrics

test-ui: root deps ## kubectl ironlb ui in headless Chromium, which it installs; -args -update writes the pictures of the docs (root)
	@test/lab/packages.sh chromium fonts-dejavu-core
	@$(REPORT) -count=1 -timeout 25m ./test/e2e/ui

test-release: ## the whole release twice, with the same files; minutes
	@IRONLB_TEST_ALL=1 $(REPORT) -count=1 -timeout 90m ./test/deploy/release

test-privileges: root deps ## remove each capability and each RBAC rule, one at a time: which check fails (root)
	@mkdir -p bin && rm -f bin/privileges.md
	@status=0; $(REPORT) -count=1 -timeout 60m ./test/e2e/leastprivilege -args -table '$(CURDIR)/bin/privileges.md' || status=$$?; \
	cat bin/privileges.md; exit $$status
