package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/host"
)

const (
	// warmUpServices limits the Services of a warm-up, warmUpLimit its time.
	warmUpServices = 100
	warmUpLimit    = 10 * time.Minute
)

// bench is the lab with the existing Services.
type bench struct {
	options
	cluster *lab.Cluster
	node    *lab.Node
	// program is the path of this program, visible to the node.
	program  string
	services int
	pods     []netip.Addr
}

func run(ctx context.Context, o options) (err error) {
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/ironlb/ironlb/test/bench/ipvs\n", runtime.GOOS, runtime.GOARCH)
	c, err := lab.New(ctx, lab.Config{Nodes: 1, KubeProxy: true, Services: clusterIPs, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() {
		if dir := os.Getenv("IRONLB_LAB_LOGS"); err != nil && dir != "" {
			err = errors.Join(err, c.SaveLogs(dir))
		}
		err = errors.Join(err, c.Close())
	}()
	b := &bench{options: o, cluster: c, node: c.Node(0)}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if err := b.warmUp(ctx); err != nil {
		return err
	}
	var failed []error
	for range o.count {
		for _, size := range b.sizes {
			if err := b.grow(ctx, size); err != nil {
				return err
			}
			for _, name := range o.peers {
				err := b.measure(ctx, peerByName(name), b.changes, os.Stdout)
				if ctx.Err() != nil {
					return err
				}
				if err != nil { // the others can still be measured
					err = fmt.Errorf("%s with %d Services: %w", name, size, err)
					fmt.Printf("not measured: %s\n", firstLine(err))
					failed = append(failed, err)
				}
			}
		}
		if o.count > 1 {
			// Sizes ascend: a repeated run has all Services in place.
			b.sizes = o.sizes[len(o.sizes)-1:]
		}
	}
	return errors.Join(failed...)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// modules are those of the peers in mode ipvs. The first peer would load them for the others.
var modules = []string{
	"ip_vs", "ip_vs_rr", "nf_conntrack", "dummy",
	"ip_set", "ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet",
	"ip_set_bitmap_port",
}

// prepare loads kernel modules, creates the Pods and copies this program to a folder visible to the node.
func (b *bench) prepare(ctx context.Context) error {
	if _, err := host.Run(ctx, b.node.Host(), append([]string{"modprobe", "-a"}, modules...)...); err != nil {
		return fmt.Errorf("load the kernel modules: %w", err)
	}
	for i := range perService {
		pod, err := b.cluster.AddPod(ctx, lab.PodSpec{Name: fmt.Sprint("pod", i), Node: b.node})
		if err != nil {
			return err
		}
		addr, err := netip.ParseAddr(pod.Status.PodIP)
		if err != nil {
			return fmt.Errorf("address of Pod %s: %w", pod.Name, err)
		}
		b.pods = append(b.pods, addr)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	b.program = filepath.Join(b.cluster.Dir, "bench-ipvs")
	if err := os.WriteFile(b.program, self, 0o755); err != nil {
		return err
	}
	_, err = b.cluster.Client.Exec(ctx, "ip", "route", "add", "198.18.0.0/15", "via", b.node.Addr.String())
	return err
}

// grow creates the missing Services up to the number.
func (b *bench) grow(ctx context.Context, size int) error {
	if size <= b.services {
		return nil
	}
	progress("making Services %d to %d", b.services, size)
	if err := grow(ctx, b.cluster.Kube, b.services, size, b.pods); err != nil {
		return err
	}
	b.services = size
	return nil
}

// warmUp starts each peer once with few Services, without a result: the first start of a program in a booted guest
// takes twice as long, as the guest reads the file and an emulator translates its code.
func (b *bench) warmUp(ctx context.Context) error {
	progress("warming up, without results")
	if err := b.grow(ctx, min(warmUpServices, b.sizes[0])); err != nil {
		return err
	}
	for _, name := range b.peers {
		err := b.warmUpPeer(ctx, peerByName(name))
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if err != nil { // then its first start is a cold one
			fmt.Printf("no warm-up of %s: %s\n", name, firstLine(err))
		}
	}
	return nil
}

func (b *bench) warmUpPeer(ctx context.Context, p peer) error {
	ctx, cancel := context.WithTimeout(ctx, warmUpLimit)
	defer cancel()
	return b.measure(ctx, p, 0, io.Discard)
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// measure measures a peer on a rebuilt node, and writes its results. Without changes it ends after the start.
func (b *bench) measure(ctx context.Context, p peer, changes int, results io.Writer) error {
	progress("%s with %d Services", p.name, b.services)
	if err := b.renew(ctx); err != nil {
		return err
	}
	argv, err := p.argv(ctx, b.node, b.cluster.Dir)
	if err != nil {
		return err
	}
	task, err := json.Marshal(task{
		Argv: argv, Log: filepath.Join("/run", p.name+".log"), Kubeconfig: b.cluster.Kubeconfig(),
		IPVS: p.ipvs, Ready: p.ready, Metric: p.metric, Table: p.table, Set: p.set,
		Services: b.services, Changes: changes,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdin, toInside := io.Pipe()
	fromInside, stdout := io.Pipe()
	var stderr bytes.Buffer
	proc, err := b.node.Host().Start(ctx, host.Cmd{
		Argv: b.node.Argv(b.program, insideCommand), Stdin: stdin, Stdout: stdout, Stderr: io.MultiWriter(&stderr, os.Stderr),
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := proc.Wait()
		stdout.CloseWithError(err)
		stdin.CloseWithError(io.ErrClosedPipe)
		ended <- err
	}()
	name := func(what string) string { return fmt.Sprintf("%s/%s/%d", what, p.name, b.services) }
	lines := bufio.NewScanner(fromInside)
	if _, err := fmt.Fprintf(toInside, "%s\n", task); err != nil {
		return err
	}
	for lines.Scan() {
		line := lines.Text()
		if line != loadLine {
			fmt.Fprintf(results, "Benchmark%s\n", strings.ReplaceAll(line, "PEER", fmt.Sprintf("%s/%d", p.name, b.services)))
			continue
		}
		if err := b.requests(ctx, results, name("Requests")); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(toInside, "done"); err != nil {
			return err
		}
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// renew rebuilds the node, so that a peer finds no residual state of another.
func (b *bench) renew(ctx context.Context) error {
	if err := b.node.PowerOff(ctx); err != nil {
		return err
	}
	if err := b.node.PowerOn(ctx); err != nil {
		return err
	}
	for i := range perService {
		if _, err := b.cluster.WaitPod(ctx, namespace, fmt.Sprint("pod", i), true); err != nil {
			return err
		}
	}
	return b.cluster.Eventually(ctx, time.Minute, "the Pods answer", func(ctx context.Context) error {
		for _, addr := range b.pods {
			if _, err := b.node.Exec(ctx, "curl", "-sf", "-m", "5", "-o", "/dev/null", "http://"+netip.AddrPortFrom(addr, 8080).String()); err != nil {
				return err
			}
		}
		return nil
	})
}
