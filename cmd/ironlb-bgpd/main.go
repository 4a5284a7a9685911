// MPTCP is off: Linux supports the password of a session (RFC 2385) only for TCP, and Go listens with MPTCP by default.
//go:debug multipathtcp=0

// Command ironlb-bgpd runs BGP and BFD for the speaker of its node. It keeps the speaker's desired state across
// restarts of the speaker. GoBGP runs in a child process, which may crash.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"

	"github.com/ironlb/ironlb/cmd/internal/version"
	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/bgp/gobgp"
	"github.com/ironlb/ironlb/speaker/routes"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ironlb-bgpd:", err)
		os.Exit(1)
	}
}

// idleHeap is the memory that the parent may use before a garbage collection: BFD must not wait for the collector.
// With 10,000 prefixes it needs about 20 MB.
const idleHeap = 96 << 20

// run runs the parent. It returns after a shutdown when ctx ends, or when a part of it fails permanently.
func run(ctx context.Context, o options, log *slog.Logger) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var d *bgp.Daemon
	d = bgp.NewDaemon(bgp.DaemonOptions{
		Log: log, Socket: o.socket, Hold: o.hold, Metrics: bgp.NewMetrics(registry), Gatherer: registry,
		Child: func(peer string) *exec.Cmd {
			return exec.Command("/proc/self/exe", slices.Concat([]string{"gobgp"}, o.logs.Flags(),
				[]string{"--peer-memory", fmt.Sprint(o.peerMemory), "--peer", peer})...)
		},
		BFD: newBFD(log, registry, func(all map[string]bgp.BFDStatus) { d.BFDChanged(all) }),
	})
	log.Info("start", "version", version.String(), "socket", o.socket, "hold", o.hold)
	defer log.Info("stop")
	return d.Run(ctx)
}

// runChild runs the child. Its parent ends it: signals to the process group are handled by the parent.
func runChild(ctx context.Context, log *slog.Logger) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	return bgp.ServeFile(ctx, bgp.ChildFile, log, func(report func(routes.Session)) bgp.Driver {
		return gobgp.New(gobgp.Options{Log: log, Report: report})
	})
}

// Memory of a peer's process in MiB. The Go runtime maps 64 MiB at a time. With 10,000 own prefixes a process has 63
// MB. A router's full table of a million prefixes takes 0.9 GB and more.
const (
	defaultPeerMemory = 384
	leastPeerMemory   = 192
)

// limitMemory limits the memory of this process in the kernel (RLIMIT_DATA, setrlimit(2)); at the limit the process
// ends. Otherwise a router's routes could end all processes of the container, including BFD's (memory.oom.group of its
// cgroup). The garbage collector runs more often near the limit.
func limitMemory(mib uint) error {
	if mib == 0 {
		return nil
	}
	limit := uint64(mib) << 20
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return fmt.Errorf("limit the memory of this process to %d MiB: %w", mib, err)
	}
	debug.SetMemoryLimit(int64(limit / 4 * 3))
	return nil
}
