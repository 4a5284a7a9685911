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
	web, files netip.Addr // addresses with forwarding pod and direct
	took       []step
	figures    []string
}

// step is a part of the demonstration.
type step struct {
	name string
	do   func(context.Context) error
	took time.Duration
}

// demo builds the cluster, runs the demonstration, removes everything, and prints the figures. With shell the nodes have
// kubelets and the chart, and the user gets a shell on the cluster instead of a dead node.
func demo(ctx context.Context, shell bool) error {
	began := time.Now()
	config := lab.Config{
		Progress: &stamped{began: began}, Kernel: lab.Native,
		NodeGrace: 50 * time.Second, // as in Kubernetes
	}
	if shell {
		config.Kubelets = &lab.Kubelets{KubeProxy: lab.ProxyNFTables}
	}
	c, err := lab.New(ctx, config)
	if err != nil {
		return err
	}
	s := &show{Cluster: c, took: []step{{name: "programs built, control plane and three nodes Ready", took: time.Since(began)}}}
	steps := []step{
		{name: "IronLB runs", do: s.start},
		{name: "Services have addresses and answer", do: s.services},
		{name: "the owner's node dies", do: s.failover},
	}
	if shell {
		steps = []step{
			{name: "chart installed, Pods Ready", do: s.install},
			{name: "Services have addresses and answer", do: s.deployed},
			{name: "shell", do: s.shell},
		}
	}
	if err = s.run(ctx, steps); err != nil {
		err = s.failed(ctx, errors.Join(err, c.Err()))
	}
	removal := time.Now()
	fmt.Fprintln(config.Progress, "removing everything")
	if err = errors.Join(err, c.Close()); err != nil {
		return err
	}
	fmt.Fprintln(config.Progress, "done")
	s.took = append(s.took, step{name: "everything removed", took: time.Since(removal)})
	title("Seconds of each step")
	for _, step := range s.took {
		fmt.Printf("%6.1f  %s\n", step.took.Seconds(), step.name)
	}
	if !shell {
		title("What the clients observed when the owner lost power")
	}
	for _, figure := range s.figures {
		fmt.Println(figure)
	}
	return nil
}

// run runs the steps and keeps the time of each.
func (s *show) run(ctx context.Context, steps []step) error {
	for _, step := range steps {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			return err
		}
		step.took = time.Since(began)
		s.took = append(s.took, step)
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

// start starts IronLB on every node, as its ServiceAccounts.
func (s *show) start(ctx context.Context) error {
	title("Starting ironlb-ccm, and ironlb-speaker on each node")
	if _, err := s.StartCCM(ctx, "--leader-elect=false"); err != nil {
		return err
	}
	if err := s.StartSpeakers(ctx); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		if err := n.SpeakerReady(ctx); err != nil {
			return err
		}
	}
	if err := s.print(ctx, "apply", "-f", "test/lab/demo/lan.yaml"); err != nil {
		return err
	}
	return s.print(ctx, "get", "nodes", "-o", "wide")
}

// install installs IronLB as a user does: the chart with its first pool, from images that every node has.
func (s *show) install(ctx context.Context) error {
	title("Installing the chart with a pool and an L2Advertisement")
	if err := s.Install(ctx, "--values", "test/lab/demo/values.yaml"); err != nil {
		return err
	}
	if err := s.print(ctx, "get", "nodes", "-o", "wide"); err != nil {
		return err
	}
	return s.print(ctx, "-n", lab.SystemNamespace, "get", "pods", "-o", "wide")
}

func (s *show) services(ctx context.Context) error { return s.serve(ctx, "pods.yaml") }
func (s *show) deployed(ctx context.Context) error { return s.serve(ctx, "deployment.yaml") }

// serve creates servers and two Services, waits for their addresses and owners, and prints their state in the API and in
// the owner's kernel.
func (s *show) serve(ctx context.Context, servers string) (err error) {
	title("Applying three servers and two Services")
	if err := s.WaitNamespace(ctx, metav1.NamespaceDefault); err != nil {
		return err
	}
	if err := s.print(ctx, "apply", "-f", "test/lab/demo/"+servers, "-f", "test/lab/demo/web.yaml", "-f", "test/lab/demo/files.yaml"); err != nil {
		return err
	}
	if s.web, err = s.address(ctx, "web"); err != nil {
		return err
	}
	if s.files, err = s.address(ctx, "files"); err != nil {
		return err
	}
	owner, err := s.owner(ctx, s.web, nil)
	if err != nil {
		return err
	}
	if _, err := s.owner(ctx, s.files, nil); err != nil {
		return err
	}
	title("Each Service has an EXTERNAL-IP, and one node announces it")
	for _, vip := range []netip.Addr{s.web, s.files} {
		if err := s.reachable(ctx, vip); err != nil {
			return err
		}
	}
	if err := s.print(ctx, "get", "svc", "web", "files"); err != nil {
		return err
	}
	if err := s.print(ctx, "get", "vip"); err != nil {
		return err
	}
	if err := s.forwarding(ctx, owner); err != nil {
		return err
	}
	return s.answers(ctx)
}

// address waits for the address of a Service.
func (s *show) address(ctx context.Context, service string) (vip netip.Addr, err error) {
	err = s.Eventually(ctx, time.Minute, "Service "+service+" to get an address", func(ctx context.Context) error {
		svc, err := s.Kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(svc.Status.LoadBalancer.Ingress) == 0 {
			return errors.New("it has none")
		}
		vip, err = netip.ParseAddr(svc.Status.LoadBalancer.Ingress[0].IP)
		return err
	})
	return vip, err
}

// owner waits until the VirtualIP's status names an owner other than not.
func (s *show) owner(ctx context.Context, vip netip.Addr, not *lab.Node) (node *lab.Node, err error) {
	err = s.Eventually(ctx, time.Minute, "an owner of "+vip.String(), func(ctx context.Context) error {
		var object v1alpha1.VirtualIP
		if err := s.Objects.Get(ctx, types.NamespacedName{Name: vip.String()}, &object); err != nil {
			return err
		}
		node = s.NodeByName(object.Status.Node)
		if node == nil || node == not {
			return fmt.Errorf("it is %q", object.Status.Node)
		}
		return nil
	})
	return node, err
}

// replicas are the servers.
const replicas = 3

// reachable waits until a client has answers from every Pod.
func (s *show) reachable(ctx context.Context, vip netip.Addr) error {
	return s.Eventually(ctx, time.Minute, "answers of "+vip.String()+" from every Pod", func(ctx context.Context) error {
		sum, err := s.ask(ctx, vip, 12)
		if err == nil && (sum.Failed > 0 || len(sum.ByPod) < replicas) {
			err = errors.New(sum.String())
		}
		return err
	})
}

func target(vip netip.Addr) netip.AddrPort { return netip.AddrPortFrom(vip, 80) }

func (s *show) ask(ctx context.Context, vip netip.Addr, count int) (probe.Summary, error) {
	return s.Client.Ask(ctx, lab.Probe{
		Network: "tcp", Target: target(vip), Count: count, Serial: true, Every: 10 * time.Millisecond, Timeout: 5 * time.Second,
	})
}

// answers prints a client's answers.
func (s *show) answers(ctx context.Context) error {
	title("20 answers from each address to the client " + s.Client.Addr.String())
	for _, vip := range []netip.Addr{s.web, s.files} {
		sum, err := s.ask(ctx, vip, 20)
		if err != nil {
			return err
		}
		fmt.Printf("http://%s/  %s\n", vip, sum)
		if sum.Failed > 0 || len(sum.ByPod) < replicas {
			return errors.New("the client did not get 20 answers, from every Pod")
		}
	}
	return nil
}

// failover cuts the power of the addresses' owner, while one client downloads from a Pod elsewhere through one address,
// and another opens connections to the other address.
func (s *show) failover(ctx context.Context) error {
	old, err := s.owner(ctx, s.files, nil)
	if err != nil {
		return err
	}
	switch also, err := s.owner(ctx, s.web, nil); {
	case err != nil:
		return err
	case also != old:
		return fmt.Errorf("%s owns %s, and %s owns %s: want one owner", old.Name, s.files, also.Name, s.web)
	}
	download, pod, err := s.download(ctx, old)
	if err != nil {
		return err
	}
	client, err := s.Client.StartProbe(ctx, lab.Probe{
		Network: "tcp", Target: target(s.web), Every: 50 * time.Millisecond, Timeout: time.Second, Most: 100,
	})
	if err != nil {
		return err
	}
	if err := download.WaitAnswers(ctx, 30*time.Second, 100); err != nil {
		return err
	}
	title("Cutting the power of " + old.Name + ", the owner, during a download from " + pod + " and new connections")
	cut := time.Now()
	if err := old.PowerOff(ctx); err != nil {
		return err
	}
	for _, vip := range []netip.Addr{s.files, s.web} {
		now, err := s.owner(ctx, vip, old)
		if err != nil {
			return err
		}
		fmt.Printf("%s now announces %s\n", now.Name, vip)
	}
	if err := download.WaitAnswers(ctx, time.Minute, 150); err != nil {
		return err
	}
	if err := client.WaitAnswers(ctx, time.Minute, 50); err != nil {
		return err
	}
	blocks, err := download.Stop()
	if err != nil {
		return err
	}
	requests, err := client.Stop()
	if err != nil {
		return err
	}
	s.figures = []string{
		fmt.Sprintf("%s  direct  one download from %s: %s", s.files, pod, stalled(blocks, cut)),
		fmt.Sprintf("%s  pod     new connections: %d of %d failed, the last one opened %s after the cut",
			s.web, requests.Failed, requests.Sent, lastFailed(requests, cut).Round(10*time.Millisecond)),
	}
	fmt.Printf("Kubernetes, %s after the cut:\n", time.Since(cut).Round(time.Second))
	if err := s.print(ctx, "get", "nodes"); err != nil {
		return err
	}
	return s.print(ctx, "get", "vip")
}

// download starts a download from a Pod that is on another node than owner, and returns its name.
func (s *show) download(ctx context.Context, owner *lab.Node) (client *lab.Prober, pod string, err error) {
	for range 30 { // the client's port decides on the Pod's node
		client, err = s.Client.StartProbe(ctx, lab.Probe{Network: "download", Target: target(s.files), Every: time.Millisecond, Timeout: 30 * time.Second})
		if err != nil {
			return nil, "", err
		}
		sum, err := client.Wait(ctx, 30*time.Second, "the first block", func(s probe.Summary) bool { return len(s.ByPod) > 0 })
		if err != nil {
			return nil, "", err
		}
		for name := range sum.ByPod {
			object, err := s.Kube.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, "", err
			}
			if object.Spec.NodeName != owner.Name {
				return client, name + " on " + object.Spec.NodeName, nil
			}
		}
		if _, err := client.Stop(); err != nil {
			return nil, "", err
		}
	}
	return nil, "", errors.New("each of 30 downloads is from a Pod on " + owner.Name)
}

// stalled describes a download: how long it stalled, and the bytes before and after the cut.
func stalled(blocks probe.Summary, cut time.Time) string {
	var before, after int
	for _, block := range blocks.Results {
		switch {
		case !block.OK():
		case block.End().Before(cut):
			before++
		default:
			after++
		}
	}
	return fmt.Sprintf("stalled %s, then went on; %s before the cut, %s after", blocks.Outage.Round(10*time.Millisecond), megabytes(before), megabytes(after))
}

func megabytes(blocks int) string { return fmt.Sprintf("%.1f MB", float64(blocks*probe.BlockSize)/1e6) }

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
	fmt.Printf(`  kubectl get svc,vip,nodes            kubectl ironlb status; helm -n %s list
  curl cannot reach the LAN from here; the machines have commands of their own:
  client curl -s http://%s/    a client on the LAN; remote: one behind the router
  node1 nft list table ip ironlb-lb    node2, node3, router as well; ipvsadm -Ln where the kernel has IPVS
  net ip link set lan-node1 nomaster   pull a node's LAN cable; "master lan" puts it back (api-node1, api: to the API server)
  logs: %s
  exit                                 removes everything
`, lab.SystemNamespace, s.web, s.Dir)
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
	fmt.Printf("\n%s# nft list table ip ironlb-lb | grep %s\n", n.Name, s.web)
	for line := range strings.Lines(out) {
		if strings.Contains(line, s.web.String()) {
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
