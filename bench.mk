# Measurements: they print Go's benchmark format or a table. `make` lists them with the other targets.

.PHONY: chaos-connections bench-pools bench-ccm bench-ipvs bench-idle bench-scale bench-direct bench-l2 \
	bench-heal bench-liveness bench-starved bench-failover bench-sim e2e-upstream bench-bgp

chaos-connections: root deps ## the table of connections that break while owners, routes and endpoints change, for each way of forwarding; an hour, FLAGS='-modes pod -networks lan' less (root)
	@go run ./test/bench/connections $(FLAGS)

bench-pools: ## the allocator alone
	@go test -run '^$$' -bench . -benchmem ./pools

bench-ccm: root deps ## ironlb-ccm compared with a bare load generator on a real API server, and its restart with 5,000 Services (root)
	@go run ./test/bench/ccm

bench-ipvs: root deps ## the data planes compared with kube-proxy's ipvs and nftables, in one guest: 100, 1,000 and 5,000 Services; an hour and a half where it is emulated, FLAGS='-services 100,1000' a quarter of that (root)
	@go run ./test/bench/ipvs $(FLAGS)

bench-idle: root deps ## CPU and memory of idle processes at 0, 1,000 and 5,000 Services, compared with kube-proxy and MetalLB; half an hour, FLAGS='-services 13 -peers ironlb -threads' less (root)
	@go run ./test/bench/idle $(FLAGS)

bench-scale: root ## one ironlb-speaker with 1,000, 5,000 and 10,000 Services: start, memory, idle, change, repair; five minutes, FLAGS='-services 1000' less (root)
	@go run ./test/bench/scale $(FLAGS)

bench-direct: root deps ## forwarding direct compared with pod under load: requests per second, p99, CPU time, bytes through the owner; 5 minutes, FLAGS='-rounds 1 -sizes 1000' less (root)
	@go run ./test/bench/direct $(FLAGS)

bench-l2: root ## what foreign ARP and neighbor discovery cost, and how fast an owned address is answered (root)
	@go test -run '^$$' -bench Foreign -benchtime 50000x ./speaker/l2
	@go test -run '^$$' -bench 'Answer|Announce' -benchtime 2000x ./speaker/l2

bench-heal: root ## how long until what another program flushes or edits is restored, in the lab (root)
	@go test -run '^$$' -bench HarmIsHealed -benchtime 10x -timeout 30m ./test/e2e

bench-liveness: root ## how soon and how wrongly dead nodes are found, compared with memberlist; a quarter of an hour, FLAGS='-rounds 5 -watch 0' less (root)
	@cd test/bench/liveness && go run . $(FLAGS)

bench-starved: root deps ## stalls and moves of speakers with the CPU shares of a small request alongside 13 busy loops; FLAGS='-shares 51 -watch 1h' (root, cgroup v1)
	@go run ./test/bench/starved $(FLAGS)

bench-failover: root deps ## what clients notice when a node fails or leaves, compared with keepalived and MetalLB; a day, ROWS=pods FLAGS='-rounds 1 -peers standard,metallb -faults power-off-owner' less (root)
	@for rows in $(or $(ROWS),address pods); do go run ./test/bench/failover -rows $$rows $(FLAGS); done

bench-sim: ## 100 speakers and 2,000 VirtualIPs by simulation: detection, traffic, false alarms, balance, CPU, unreachable nodes; three hours or so, FLAGS='-rounds 2 -watch 10s -long 2m -profiles standard' less; 1,000 nodes as in docs/development/performance.md
	@go run ./test/bench/sim $(FLAGS)

e2e-upstream: root deps ## upstream's tests of Services, all configurations: two hours and a quarter, CONFIGS='a b' or FLAGS='-specs REGEXP' less (root)
	@go run ./test/e2e/upstream -configurations '$(CONFIGS)' $(FLAGS)

bench-bgp: root deps ## how soon BIRD and FRR know of an endpoint, a dead node, 10,000 prefixes; false alarms of BFD on busy cores; an hour, FLAGS='-rounds 5 -updates 20 -tables 1' MINUTES=5 less (root)
	@go run ./test/bench/bgp $(FLAGS)
	@go run ./test/bench/bfd -minutes $(or $(MINUTES),30)
