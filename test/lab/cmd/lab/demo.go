package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/probe"
)

// show is one demonstration on a running cluster.
type show struct {
	*lab.Cluster
	vip  netip.Addr
	took []step
}

// step is a part of the demonstration.
type step struct {
	name string
	do   func(context.Context) error
	took time.Duration
}

// demo builds the cluster, runs the demonstration, and removes everything. With shell it gives the user a shell on the
// cluster instead of killing a node.
func demo(ctx context.Context, shell bool) (err error) {
	began := time.Now()
	progress := &stamped{began: began}
	c, err := lab.New(ctx, lab.Config{Progress: progress, Kernel: lab.Native, Kubelets: &lab.Kubelets{KubeProxy: lab.ProxyNFTables}})
	if err != nil {
		return err
	}
	defer func() {
		fmt.Fprintln(progress, "removing everything")
		err = errors.Join(err, c.Close())
		if err == nil {
			fmt.Fprintln(progress, "done")
		}
	}()
	s := &show{Cluster: c, took: []step{{name: "images built, three nodes with kubelets Ready", took: time.Since(began)}}}
	steps := []step{
		{name: "chart installed, Pods Ready", do: s.install},
		{name: "Service has its address and answers", do: s.service},
		{name: "20 answers", do: s.answers},
		{name: "owner's node off, answers again", do: s.failover},
	}
	if shell {
		steps[len(steps)-1] = step{name: "shell", do: s.shell}
	}
	for _, step := range steps {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			return s.failed(ctx, errors.Join(err, c.Err()))
		}
		step.took = time.Since(began)
		s.took = append(s.took, step)
	}
	title("Seconds of each step")
	for _, step := range s.took {
		fmt.Printf("%6.1f  %s\n", step.took.Seconds(), step.name)
	}
	return nil
}

// failed keeps the logs for the user, unless the user ended the demonstration.
func (s *show) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	cache, cacheErr := os.UserCacheDir()
	if cacheErr != nil {
		return err
	}
	dir := filepath.Join(cache, "ironlb", "demo-logs")
	if logErr := errors.Join(os.RemoveAll(dir), s.SaveLogs(dir)); logErr != nil {
		return errors.Join(err, logErr)
	}
	return fmt.Errorf("%w\nthe logs of all parts are in %s", err, dir)
}

// install installs IronLB as a user does: the chart with its first pool, from images that every node has.
func (s *show) install(ctx context.Context) error {
	title("Installing the chart with a pool and an L2Advertisement")
	fmt.Println("kubectl is", s.KubectlPath())
	if err := s.Install(ctx, "--values", "test/lab/demo/values.yaml"); err != nil {
		return err
	}
	if err := s.print(ctx, "get", "nodes", "-o", "wide"); err != nil {
		return err
	}
	return s.print(ctx, "-n", lab.SystemNamespace, "get", "pods", "-o", "wide")
}

// service creates a Service, waits for its address and owner, and prints their state in the API and in the owner's
// kernel.
func (s *show) service(ctx context.Context) error {
	title("Applying a Deployment of three servers and a Service")
	if err := s.print(ctx, "apply", "-f", "test/lab/demo/web.yaml"); err != nil {
		return err
	}
	err := s.Eventually(ctx, time.Minute, "Service web to get an address", func(ctx context.Context) error {
		svc, err := s.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(svc.Status.LoadBalancer.Ingress) == 0 {
			return errors.New("it has none")
		}
		s.vip, err = netip.ParseAddr(svc.Status.LoadBalancer.Ingress[0].IP)
		return err
	})
	if err != nil {
		return err
	}
	owner, err := s.owner(ctx, nil)
	if err != nil {
		return err
	}
	if err := s.reachable(ctx); err != nil {
		return err
	}
	title("The Service has an EXTERNAL-IP, and one node announces it")
	if err := s.print(ctx, "get", "svc", "web"); err != nil {
		return err
	}
	if err := s.print(ctx, "get", "vip"); err != nil {
		return err
	}
	return s.forwarding(ctx, owner)
}

// owner waits until the VirtualIP's status names an owner other than not.
func (s *show) owner(ctx context.Context, not *lab.Node) (node *lab.Node, err error) {
	err = s.Eventually(ctx, time.Minute, "an owner of "+s.vip.String(), func(ctx context.Context) error {
		var vip v1alpha1.VirtualIP
		if err := s.Objects.Get(ctx, types.NamespacedName{Name: s.vip.String()}, &vip); err != nil {
			return err
		}
		node = s.NodeByName(vip.Status.Node)
		if node == nil || node == not {
			return fmt.Errorf("it is %q", vip.Status.Node)
		}
		return nil
	})
	return node, err
}

// replicas of the Deployment in web.yaml.
const replicas = 3

// reachable waits until a client has answers from every Pod.
func (s *show) reachable(ctx context.Context) error {
	return s.Eventually(ctx, time.Minute, "answers from every Pod", func(ctx context.Context) error {
		sum, err := s.ask(ctx, 9)
		if err == nil && (sum.Failed > 0 || len(sum.ByPod) < replicas) {
			err = errors.New(sum.String())
		}
		return err
	})
}

func (s *show) target() netip.AddrPort { return netip.AddrPortFrom(s.vip, 80) }

func (s *show) ask(ctx context.Context, count int) (probe.Summary, error) {
	return s.Client.Ask(ctx, lab.Probe{
		Network: "tcp", Target: s.target(), Count: count, Serial: true, Every: 10 * time.Millisecond, Timeout: 5 * time.Second,
	})
}

// answers prints a client's answers.
func (s *show) answers(ctx context.Context) error {
	title("20 answers from the client " + s.Client.Addr.String())
	sum, err := s.ask(ctx, 20)
	if err != nil {
		return err
	}
	for i, r := range sum.Results {
		fmt.Printf("%2d  http://%s/  %s%s  in %s\n", i+1, s.vip, r.Pod, r.Error, r.Took.Round(100*time.Microsecond))
	}
	fmt.Println(sum)
	if sum.Failed > 0 || len(sum.ByPod) < replicas {
		return errors.New("the client did not get 20 answers, from every Pod")
	}
	return nil
}

// failover kills the owner's node under a steady client.
func (s *show) failover(ctx context.Context) error {
	old, err := s.owner(ctx, nil)
	if err != nil {
		return err
	}
	client, err := s.Client.StartProbe(ctx, lab.Probe{Network: "tcp", Target: s.target(), Every: 100 * time.Millisecond, Timeout: time.Second})
	if err != nil {
		return err
	}
	if err := client.WaitAnswers(ctx, 30*time.Second, 10); err != nil {
		return err
	}
	title("Cutting the power of " + old.Name + ", the owner, while the client continues its requests")
	began := time.Now()
	if err := old.PowerOff(ctx); err != nil {
		return err
	}
	now, err := s.owner(ctx, old)
	if err != nil {
		return err
	}
	if err := client.WaitAnswers(ctx, time.Minute, 100); err != nil {
		return err
	}
	sum, err := client.Stop()
	if err != nil {
		return err
	}
	fmt.Printf("the client was without an answer for %s (%d of its %d requests failed, the last one sent %s after the cut)\n",
		sum.Outage.Round(10*time.Millisecond), sum.Failed, sum.Sent, lastFailed(sum, began).Round(10*time.Millisecond))
	fmt.Printf("%s now announces %s; Kubernetes, %s after the cut:\n", now.Name, s.vip, time.Since(began).Round(time.Second))
	if err := s.print(ctx, "get", "nodes"); err != nil {
		return err
	}
	if err := s.print(ctx, "get", "vip"); err != nil {
		return err
	}
	return s.forwarding(ctx, now)
}

// lastFailed returns how long after since the last failed request was sent; 0 without one.
func lastFailed(sum probe.Summary, since time.Time) (last time.Duration) {
	for _, r := range sum.Results {
		if !r.OK() {
			last = max(last, r.Sent.Sub(since))
		}
	}
	return last
}

// shell runs a shell on the cluster until its exit.
func (s *show) shell(ctx context.Context) error {
	tty := term.IsTerminal(int(os.Stdin.Fd()))
	program := os.Getenv("SHELL")
	if program == "" {
		program = "/bin/sh"
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	title("The cluster is up: this shell is on its management machine, KUBECONFIG is set")
	fmt.Printf(`  kubectl get svc,vip,nodes            %s
  curl cannot reach the LAN from here; the machines have commands of their own:
  client curl -s http://%s/    a client on the LAN; remote: one behind the router
  node1 nft list table ip ironlb-lb    node2, node3, router as well; ipvsadm -Ln where the kernel has IPVS
  net ip link set lan-node1 nomaster   pull a node's LAN cable; "master lan" puts it back (api-node1, api: to the API server)
  logs: %s
  exit                                 removes everything
`, s.KubectlPath(), s.vip, s.Dir)
	// Ctrl-C belongs to the shell from here on. The signal must not be ignored: the shell would inherit that.
	signal.Reset(syscall.SIGINT)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	err = s.Shell(ctx, []string{exe, "run"}, tty, program)
	if s.Err() == nil && ctx.Err() == nil {
		return nil // the exit status is that of the user's last command, not of the lab
	}
	return err
}

// forwarding prints the Service in the node's kernel: its IPVS virtual server, or without IPVS the elements of
// nftables.
func (s *show) forwarding(ctx context.Context, n *lab.Node) error {
	if out, err := n.Exec(ctx, "ipvsadm", "-Ln"); err == nil {
		fmt.Printf("\n%s# ipvsadm -Ln\n%s", n.Name, out)
		return nil
	}
	out, err := n.Exec(ctx, "nft", "list", "table", "ip", "ironlb-lb")
	fmt.Printf("\n%s# nft list table ip ironlb-lb | grep %s\n", n.Name, s.vip)
	for line := range strings.Lines(out) {
		if strings.Contains(line, s.vip.String()) {
			fmt.Print(line)
		}
	}
	return err
}

// print runs kubectl and prints its output.
func (s *show) print(ctx context.Context, args ...string) error {
	out, err := s.Kubectl(ctx, args...)
	fmt.Printf("\n$ kubectl %s\n%s", strings.Join(args, " "), out)
	return err
}

func title(text string) { fmt.Printf("\n== %s\n", text) }

// stamped prints lines with the time since the start.
type stamped struct{ began time.Time }

func (s *stamped) Write(b []byte) (int, error) {
	_, err := fmt.Printf("[%4.0fs] %s", time.Since(s.began).Seconds(), b)
	return len(b), err
}
