// Package kubenode runs a Kubernetes node in namespaces of one machine: containerd, a kubelet, and Pods from images.
//
// A node has its own network, mount, UTS and PID namespaces and a cgroup in each hierarchy. It has its own /run, and
// its own /var/lib and /var/log, which survive a reboot; all other files are the machine's. Its first process is
// labnode; when labnode is killed, the kernel ends all others.
package kubenode

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironlb/ironlb/test/lab/host"
	"github.com/ironlb/ironlb/test/lab/process"
)

// Programs that a node needs built; runc and the CNI plugins are Debian's.
var Programs = []string{"containerd", "containerd-shim-runc-v2", "ctr", "kubelet"}

// Config of a node. Every field is needed.
type Config struct {
	Name       string
	Host       host.Host
	Namespace  string // network namespace, created by the caller with its links and addresses
	Dir        string // folder of the node's files
	Cgroup     string // name of the node's cgroup, unique on the machine
	Program    func(name string) string
	Kubeconfig string // file with the kubelet's credentials
	ClientCA   string // file with the certificate authority of the kubelet's clients
	Addresses  []netip.Addr
	PodCIDRs   []netip.Prefix
	DNS        netip.Addr // ClusterIP of the cluster's DNS server
	Sandbox    string     // reference of the image of a Pod's sandbox
	Images     []string   // archives to import; none is pulled

	// Start starts a command that keeps running in the host, with a log.
	Start func(ctx context.Context, name string, cmd host.Cmd) (*process.Process, error)
	// Failed receives the errors of programs that ended by themselves.
	Failed func(error)
}

// Node is off or runs: from Boot to PowerOff, any number of times.
type Node struct {
	cfg Config

	mu                        sync.Mutex
	first                     int // process 1 of the node, with its number in the host
	root, containerd, kubelet *process.Process
}

// New returns a node that is off.
func New(cfg Config) *Node { return &Node{cfg: cfg} }

// Boot starts the node: its first process, containerd with the images, and the kubelet.
func (n *Node) Boot(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.writeFiles(); err != nil {
		return fmt.Errorf("boot %s: %w", n.cfg.Name, err)
	}
	for _, step := range []func(context.Context) error{n.startFirst, n.startContainerd, n.importImages, n.startKubelet} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("boot %s: %w", n.cfg.Name, err)
		}
	}
	return nil
}

// startFirst creates the node's namespaces.
func (n *Node) startFirst(ctx context.Context) error {
	ready := newSignal("ready")
	argv := []string{"nsenter", "--net=/run/netns/" + n.cfg.Namespace, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child",
		n.cfg.Program("labnode"), "init", "-name", n.cfg.Name, "-cgroup", n.cfg.Cgroup, "-dir", n.cfg.Dir}
	p, err := n.cfg.Start(ctx, "labnode", host.Cmd{Argv: argv, Stdout: ready})
	if err != nil {
		return err
	}
	n.root = p // PowerOff can end it from here on
	select {
	case <-ready.seen:
	case <-p.Done():
		return p.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
	out, err := host.Run(ctx, n.cfg.Host, "pgrep", "-P", strconv.Itoa(p.Pid()))
	if err != nil {
		return fmt.Errorf("find the node's first process: %w", err)
	}
	n.first, err = strconv.Atoi(strings.TrimSpace(string(out)))
	return err
}

// Argv returns the command that runs argv in all namespaces and cgroups of the node.
func (n *Node) Argv(argv ...string) []string {
	return append([]string{"nsenter", "-t", strconv.Itoa(n.first), "--net", "--mount", "--uts", "--pid", "--",
		n.cfg.Program("labnode"), "join", "-cgroup", n.cfg.Cgroup, "--"}, argv...)
}

// Exec runs a command in all namespaces of the node and returns its standard output.
func (n *Node) Exec(ctx context.Context, argv ...string) (string, error) {
	out, err := host.Run(ctx, n.cfg.Host, n.Argv(argv...)...)
	if err != nil {
		return string(out), fmt.Errorf("on %s: %w", n.cfg.Name, err)
	}
	return string(out), nil
}

// start starts a program of the node.
func (n *Node) start(ctx context.Context, name string, argv ...string) (*process.Process, error) {
	p, err := n.cfg.Start(ctx, name, host.Cmd{Argv: n.Argv(argv...)})
	if err != nil {
		return nil, err
	}
	go func() {
		<-p.Done()
		n.cfg.Failed(p.Err())
	}()
	return p, nil
}

// ctr returns a command of containerd's client, in the namespace of the Pods' images and containers.
func (n *Node) ctr(args ...string) []string {
	return n.Argv(append([]string{n.cfg.Program("ctr"), "-a", containerdSocket, "-n", "k8s.io"}, args...)...)
}

// ExecIn runs a command in a running container, as "crictl exec" does, and returns its standard output.
func (n *Node) ExecIn(ctx context.Context, container string, argv ...string) (string, error) {
	args := append([]string{"tasks", "exec", "--exec-id", "lab-" + rand.Text(), container}, argv...)
	out, err := host.Run(ctx, n.cfg.Host, n.ctr(args...)...)
	if err != nil {
		return string(out), fmt.Errorf("in container %s of %s: %w", container, n.cfg.Name, err)
	}
	return string(out), nil
}

func (n *Node) startContainerd(ctx context.Context) (err error) {
	path := "PATH=" + filepath.Dir(n.cfg.Program("containerd-shim-runc-v2")) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// runc keeps files for an exec in TMPDIR. A guest's own folder does not exist on the node, which has its own /run.
	n.containerd, err = n.start(ctx, "containerd", "env", path, "TMPDIR=/tmp", n.cfg.Program("containerd"), "--config", filepath.Join(files, containerdFile))
	if err != nil {
		return err
	}
	return poll(ctx, time.Minute, "containerd", n.containerd, func() error {
		_, err := host.Run(ctx, n.cfg.Host, n.ctr("version")...)
		return err
	})
}

// importImages imports the images that containerd has not kept from before a reboot.
func (n *Node) importImages(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, archive := range n.cfg.Images {
		group.Go(func() error { return n.importImage(ctx, archive) })
	}
	return group.Wait()
}

func (n *Node) importImage(ctx context.Context, archive string) error {
	// The path is in the node's view: its disk may have been lost at power-off.
	mark := fmt.Sprintf("/proc/%d/root%s/imported-%s", n.first, files, filepath.Base(archive))
	if _, err := host.Run(ctx, n.cfg.Host, "test", "-e", mark); err == nil {
		return nil
	}
	if _, err := host.Run(ctx, n.cfg.Host, n.ctr("images", "import", "--local", archive)...); err != nil {
		return fmt.Errorf("import image %s: %w", archive, err)
	}
	_, err := host.Run(ctx, n.cfg.Host, "touch", mark)
	return err
}

// Import imports an archive of images into the running node.
func (n *Node) Import(ctx context.Context, archive string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.importImage(ctx, archive)
}

// Tag adds a name to an image of the running node.
func (n *Node) Tag(ctx context.Context, from, to string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := host.Run(ctx, n.cfg.Host, n.ctr("images", "tag", "--force", from, to)...); err != nil {
		return fmt.Errorf("tag image %s on %s: %w", from, n.cfg.Name, err)
	}
	return nil
}

func (n *Node) startKubelet(ctx context.Context) (err error) {
	n.kubelet, err = n.start(ctx, "kubelet", append([]string{n.cfg.Program("kubelet")}, n.kubeletFlags()...)...)
	return err
}

// StartKubelet restarts the kubelet after StopKubelet.
func (n *Node) StartKubelet(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.startKubelet(ctx)
}

// StopKubelet ends the kubelet; the Pods keep running.
func (n *Node) StopKubelet(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stop(ctx, n.kubelet)
}

// RestartContainerd restarts containerd, as an upgrade of its package does; the Pods keep running.
func (n *Node) RestartContainerd(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.stop(ctx, n.containerd); err != nil {
		return err
	}
	return n.startContainerd(ctx)
}

// stop ends a program of the node with SIGTERM. The host's process is nsenter, which does not forward signals.
func (n *Node) stop(ctx context.Context, p *process.Process) error {
	if p == nil || !p.Running() {
		return nil
	}
	p.Expect()
	if _, err := host.Run(ctx, n.cfg.Host, "pkill", "-TERM", "-P", strconv.Itoa(p.Pid())); err != nil {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	select {
	case <-p.Done():
		return nil
	case <-time.After(20 * time.Second):
		return errors.Join(fmt.Errorf("stop %s: it still runs 20s after SIGTERM", p.Name), p.Kill())
	}
}

// PowerOff kills every process of the node at once, and removes its cgroups.
func (n *Node) PowerOff(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range []*process.Process{n.kubelet, n.containerd} {
		if p != nil {
			p.Expect()
		}
	}
	if n.root == nil {
		return nil
	}
	if err := n.root.Kill(); err != nil {
		return err
	}
	n.root = nil
	for _, p := range []*process.Process{n.kubelet, n.containerd} {
		if p != nil {
			<-p.Done()
		}
	}
	return n.removeCgroups(ctx)
}

// removeCgroups waits until the kernel has ended the last process in them.
func (n *Node) removeCgroups(ctx context.Context) error {
	return poll(ctx, 20*time.Second, "the end of the node's processes", nil, func() error {
		_, err := host.Run(ctx, n.cfg.Host, n.cfg.Program("labnode"), "remove", "-cgroup", n.cfg.Cgroup)
		return err
	})
}

// poll calls check every 50 ms until it returns nil, the limit has passed, or p (if set) has ended.
func poll(ctx context.Context, limit time.Duration, what string, p *process.Process, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var ended <-chan struct{}
	if p != nil {
		ended = p.Done()
	}
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ended:
			return p.Err()
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %w", what, ctx.Err(), err)
		}
	}
}

// signal is a writer that detects a line.
type signal struct {
	want string
	seen chan struct{}
	once sync.Once
	text strings.Builder
}

func newSignal(want string) *signal { return &signal{want: want, seen: make(chan struct{})} }

func (s *signal) Write(b []byte) (int, error) {
	s.text.Write(b)
	if strings.Contains(s.text.String(), s.want) {
		s.once.Do(func() { close(s.seen) })
	}
	return len(b), nil
}
