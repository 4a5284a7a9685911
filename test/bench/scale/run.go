package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
)

// run measures each size with a new process on an empty node.
func run(ctx context.Context, o options) error {
	if err := connect(); err != nil {
		return err
	}
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/ironlb/ironlb/test/bench/scale\n", runtime.GOOS, runtime.GOARCH)
	for _, size := range o.sizes {
		if err := measureSize(ctx, o, size); err != nil {
			return fmt.Errorf("%d Services: %w", size, err)
		}
	}
	return nil
}

// connect creates the interface of the node, and a silent neighbor.
func connect() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "neighbor"}); err != nil {
		return fmt.Errorf("add an interface: %w", err)
	}
	for _, name := range []string{"lo", "neighbor", link} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
		if name != link {
			continue
		}
		addr, err := netlink.ParseAddr("192.0.2.1/24")
		if err == nil {
			err = netlink.AddrAdd(l, addr)
		}
		if err != nil {
			return fmt.Errorf("give %s an address: %w", link, err)
		}
	}
	return nil
}

// bench measures one process.
type bench struct {
	o        options
	services int
	changed  []int // how often the endpoints of each Service were changed
	dir      string
	api      *apiserver
	p        *process
}

func measureSize(ctx context.Context, o options, size int) (err error) {
	b := &bench{o: o, services: size, changed: make([]int, size)}
	if b.dir, err = os.MkdirTemp("", "bench-scale"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	ctx, stop := context.WithCancel(ctx)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		stop()
		return err
	}
	b.api = newAPIServer(cluster(size))
	served := make(chan error, 1)
	go func() { served <- b.api.serve(ctx, listener) }()
	defer func() {
		stop()
		err = errors.Join(err, <-served)
	}()
	if err := b.configure(listener.Addr().String()); err != nil {
		return err
	}
	if b.p, err = b.startSpeaker(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.p.kill(), b.keep(), b.cleanUp()) }()
	return b.measure(ctx)
}

// configure writes the files that the process reads.
func (b *bench) configure(apiserver string) error {
	// The size of conntrack's table belongs to the initial network namespace.
	for name, text := range map[string]string{
		"speaker.yaml": fmt.Sprintf("dataplane: nftables\nserviceProxy: true\nstateDir: %s\nconntrack: {maxPerCore: 0, min: 0}\n", filepath.Join(b.dir, "state")),
		"kubeconfig": fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://%s'}}]\n"+
			"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: c\n", apiserver),
		"keys": rand.Text() + "\n",
	} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) args(command ...string) []string {
	return append(command, "--config", filepath.Join(b.dir, "speaker.yaml"))
}

func (b *bench) startSpeaker() (*process, error) {
	return start(filepath.Join(b.dir, "log"), b.o.speaker, b.args("--node-name", thisNode,
		"--kubeconfig", filepath.Join(b.dir, "kubeconfig"), "--key-file", filepath.Join(b.dir, "keys"))...)
}

// cleanUp removes what the process programmed.
func (b *bench) cleanUp() error {
	ctx, stop := context.WithTimeout(context.Background(), b.o.limit)
	defer stop()
	if out, err := exec.CommandContext(ctx, b.o.speaker, b.args("cleanup")...).CombinedOutput(); err != nil {
		return fmt.Errorf("ironlb-speaker cleanup: %w: %s", err, out[max(0, len(out)-lastOctets):])
	}
	return nil
}

// keep copies the log to the folder of -keep.
func (b *bench) keep() error {
	if b.o.keep == "" {
		return nil
	}
	log, err := os.ReadFile(filepath.Join(b.dir, "log"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.o.keep, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.o.keep, fmt.Sprintf("log-%d", b.services)), log, 0o644)
}
