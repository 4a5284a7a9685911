package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/cmd/internal/echo"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/connectivity"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const (
	// startLimit is the time limit for the start of the Pods, which may include the download of the image, and for the
	// end of the namespace.
	startLimit = 3 * time.Minute
	// readEvery is the interval at which a test reads the objects of the cluster.
	readEvery = time.Second
)

// connectivityOptions are the flags of connectivity test.
type connectivityOptions struct {
	image, pool    string
	timeout        time.Duration
	tests          []string
	failover, here bool
	keep           bool
}

func (t *tool) connectivityCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "connectivity",
		Short: "Test what clients of a Service get",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(t.connectivityTestCommand())
	return cmd
}

func (t *tool) connectivityTestCommand() *cobra.Command {
	r := &connectivityRun{tool: t, request: requestFromHere}
	var list, hosts strings.Builder
	for _, test := range connectivity.Tests {
		fmt.Fprintf(&list, "  %-14s %s\n", test.Name, test.Proves)
		if test.Hosts {
			hosts.WriteString(" " + string(test.Name))
		}
	}
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Create clients and Services in a namespace of their own, and test the way from one to the other",
		Long: `connectivity test creates a server, clients on up to three nodes, and up to three Services of type LoadBalancer in the
namespace ` + connectivity.Namespace + `. It makes requests, compares the answers, and removes the namespace, also after
Ctrl-C. It changes nothing else; --failover adds an L2Advertisement for its own Service meanwhile.

The tests:
` + list.String() + `
Those that do not apply are skipped: bgp without a BGPPeer, dual-stack with pools of one family. A failed test shows what was
requested, from where and with which result, and the output of kubectl ironlb explain for its Service.

The clients of these tests include Pods in the network of the nodes (hostNetwork):` + hosts.String() + `. If they run, the namespace has
the Pod Security level privileged, otherwise restricted. Pods and processes of a node are served by that node. So they do not
notice who announces the address: run the command where it is announced, with --from-here.

The Pods run the image of the speakers, without privileges and without a token. Their server gives the name of its Pod and the
address of the client, and nothing else.

Exit code: 0 if no test failed, 1 if one did, 2 if they could not run.`,
		Example: `  kubectl ironlb connectivity test
  kubectl ironlb connectivity test --from-here --failover
  kubectl ironlb connectivity test --pool rack-1 --tests l2,hairpin --keep`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.progress = t.out
			if t.output != "" {
				r.progress = cmd.ErrOrStderr()
			}
			return t.connected(func(ctx context.Context, _ []string) error { return r.run(ctx) })(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&r.o.image, "image", "", "The image of the Pods, with ironlb-speaker. Empty: that of the speakers.")
	flags.StringVar(&r.o.pool, "pool", "", "The IPAddressPool of the Services. Empty: as for any Service.")
	flags.DurationVar(&r.o.timeout, "timeout", time.Minute, "The time limit for each test.")
	flags.StringSliceVar(&r.o.tests, "tests", nil, "Run these tests only.")
	flags.BoolVar(&r.o.here, "from-here", false, "Test from this machine, too.")
	flags.BoolVar(&r.o.failover, "failover", false, "Move the address to another node, too, and show the longest time without an answer.")
	flags.BoolVar(&r.o.keep, "keep", false, "Leave the namespace for inspection.")
	flags.StringVarP(&t.output, "output", "o", "", "Output format: json or yaml. The progress is then on standard error.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

// connectivityRun is one run of connectivity test.
type connectivityRun struct {
	*tool
	o        connectivityOptions
	scene    connectivity.Scene
	execs    podClient // in the namespace of the test
	request  func(ctx context.Context, url string) echo.Transfer
	progress io.Writer

	created []corev1.Pod // with their addresses
	tried   []attempt    // of the present test
	left    error        // why an object other than the namespace was left behind
}

// The results of a test.
const (
	resultPassed, resultFailed, resultSkipped = "passed", "failed", "skipped"
)

// connectivityReport is the output of -o json.
type connectivityReport struct {
	Image string           `json:"image"`
	Nodes []string         `json:"nodes"`
	Tests []connectivityOf `json:"tests"`
}

// connectivityOf is the result of one test.
type connectivityOf struct {
	Name    connectivity.Name `json:"name"`
	Result  string            `json:"result"`
	Seconds float64           `json:"seconds"`
	Message string            `json:"message,omitempty"`
	// Tried and Explanation are those of a failed test.
	Tried       []attempt             `json:"tried,omitempty"`
	Explanation *diagnose.Explanation `json:"explanation,omitempty"`
}

// attempt is what a client requested, and what it received.
type attempt struct {
	From string `json:"from"`
	To   string `json:"to"`
	Got  string `json:"got"`
}

func (r *connectivityRun) say(format string, args ...any) {
	fmt.Fprintln(r.progress, printable(fmt.Sprintf(format, args...)))
}

func (r *connectivityRun) run(ctx context.Context) (err error) {
	if r.output != "" {
		if _, err := encode(r.output, nil, "json or yaml"); err != nil {
			return err
		}
	}
	if err := r.prepare(ctx); err != nil {
		return err
	}
	if err := r.refuse(ctx); err != nil {
		return err
	}
	ns := r.scene.Namespace()
	ns.Annotations = map[string]string{connectivity.AnnotationRun: rand.Text()}
	created := r.create(ctx, ns)
	if apierrors.IsAlreadyExists(created) {
		return created
	}
	defer func() { // also after an error: the API server may have stored the namespace
		if failed := errors.Join(r.left, r.remove(context.WithoutCancel(ctx), ns)); err == nil {
			err = failed
		} else if failed != nil {
			r.say("error: %v", failed)
		}
	}()
	if created != nil {
		return created
	}
	if err := r.setUp(ctx); err != nil {
		return err
	}
	report := connectivityReport{Image: r.scene.Image, Nodes: r.scene.Nodes, Tests: []connectivityOf{}}
	count := map[string]int{}
	for _, test := range r.scene.Tests {
		result := r.test(ctx, test)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.print(result)
		count[result.Result]++
		report.Tests = append(report.Tests, result)
	}
	r.say("%d passed, %d failed, %d skipped", count[resultPassed], count[resultFailed], count[resultSkipped])
	if r.output != "" {
		out, err := encode(r.output, report, "json or yaml")
		if err != nil {
			return err
		}
		if _, err := r.out.Write(out); err != nil {
			return fmt.Errorf("writing the output: %w", err)
		}
	}
	if count[resultFailed] > 0 {
		return errProblems
	}
	return nil
}

// prepare determines what to create.
func (r *connectivityRun) prepare(ctx context.Context) error {
	var requested []connectivity.Name
	if r.o.here {
		requested = append(requested, connectivity.FromHere)
	}
	if r.o.failover {
		requested = append(requested, connectivity.Failover)
	}
	tests, err := connectivity.Select(r.o.tests, requested...)
	if err != nil {
		return err
	}
	c, err := r.read(ctx)
	if err != nil {
		return err
	}
	if err := connectivity.Preconditions(c, r.o.pool); err != nil {
		return err
	}
	if why := c.Unread["Nodes"]; why != "" {
		return fmt.Errorf("listing Nodes: %s", why)
	}
	nodes, err := connectivity.Nodes(c.Nodes)
	if err != nil {
		return err
	}
	r.scene = connectivity.Scene{Image: r.o.image, Pool: r.o.pool, Class: c.Settings.Class, Nodes: nodes, Tests: tests}
	if r.pods == nil { // else those of a unit test
		if r.pods, err = connectPods(r.flags, r.system); err != nil {
			return err
		}
		r.execs, err = connectPods(r.flags, connectivity.Namespace)
	}
	if err == nil && r.scene.Image == "" {
		r.scene.Image, err = r.speakerImage(ctx)
	}
	return err
}

// speakerImage returns the image of a speaker, which each node has.
func (r *connectivityRun) speakerImage(ctx context.Context) (string, error) {
	all, err := r.ourPods(ctx, nil)
	if err != nil {
		return "", fmt.Errorf("which image the speakers have: %w. Name it with --image", err)
	}
	for _, pod := range all {
		for _, c := range pod.Spec.Containers {
			if c.Name == "ironlb-speaker" {
				return c.Image, nil
			}
		}
	}
	return "", fmt.Errorf("there is no Pod of ironlb-speaker in namespace %s: name its image with --image", r.system)
}

// refuse returns an error if there is something of another run.
func (r *connectivityRun) refuse(ctx context.Context) error {
	for _, o := range []client.Object{&corev1.Namespace{}, &v1alpha1.L2Advertisement{}} {
		kind := strings.ToLower(kindName(o))
		switch err := r.client.Get(ctx, client.ObjectKey{Name: connectivity.Namespace}, o); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("reading %s %s: %w", kind, connectivity.Namespace, err)
		case connectivity.Ours(o):
			at := o.GetCreationTimestamp()
			return fmt.Errorf("%s %s exists, of another run that began %s ago: wait for its end, or remove it with: kubectl delete %s %s",
				kind, connectivity.Namespace, r.ago(&at), kind, connectivity.Namespace)
		default:
			return fmt.Errorf("%s %s exists, and is not of this command: rename it, or remove it with: kubectl delete %s %s",
				kind, connectivity.Namespace, kind, connectivity.Namespace)
		}
	}
	return nil
}

// kindName returns the kind of an object, which its TypeMeta may lack.
func kindName(o client.Object) string {
	_, kind, _ := strings.Cut(fmt.Sprintf("%T", o), ".")
	return kind
}

func (r *connectivityRun) create(ctx context.Context, o client.Object) error {
	err := r.client.Create(ctx, o)
	if err == nil {
		return nil
	}
	hint := ""
	if pod, is := o.(*corev1.Pod); is && apierrors.IsForbidden(err) {
		hint = fmt.Sprintf(". The Pod meets the Pod Security level restricted: see the admission policies for namespace %s", connectivity.Namespace)
		if pod.Spec.HostNetwork {
			hint = fmt.Sprintf(". The Pod uses the network of its node: permit the Pod Security level privileged in namespace %s, "+
				"or leave out the tests that need such Pods, with --tests", connectivity.Namespace)
		}
	}
	return fmt.Errorf("creating %s %s: %w%s", kindName(o), o.GetName(), err, hint)
}

// delete requests the end of an object that this run created, and reads it into found, which is empty. It reports whether
// the object is gone, also if another one has its name. The UID is unknown if Create was interrupted.
func (r *connectivityRun) delete(ctx context.Context, o, found client.Object) (gone bool, err error) {
	if err := r.client.Get(ctx, client.ObjectKeyFromObject(o), found); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	uid := found.GetUID()
	if o.GetUID() == "" && found.GetAnnotations()[connectivity.AnnotationRun] == o.GetAnnotations()[connectivity.AnnotationRun] {
		o.SetUID(uid)
	}
	if o.GetUID() != uid {
		return true, nil
	}
	if found.GetDeletionTimestamp() != nil {
		return false, nil
	}
	err = r.client.Delete(ctx, found, client.Preconditions{UID: &uid})
	return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
}

// remove deletes the namespace and waits for its end. The program must not leave addresses in use.
func (r *connectivityRun) remove(ctx context.Context, ns *corev1.Namespace) error {
	if r.o.keep && ns.UID != "" {
		r.say("namespace %s is kept: remove it with: kubectl delete namespace %s", connectivity.Namespace, connectivity.Namespace)
		return nil
	}
	r.say("removing namespace %s", connectivity.Namespace)
	limit := max(startLimit, r.o.timeout)
	err := await(ctx, pollEvery, limit, func(ctx context.Context) error {
		found := &corev1.Namespace{}
		if gone, err := r.delete(ctx, ns, found); gone || err != nil {
			return err
		}
		why := "it is being deleted"
		for _, c := range found.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				why = c.Message
			}
		}
		return errors.New(why)
	})
	if err != nil {
		return fmt.Errorf("namespace %s is not gone after %s: %w. Remove it with: kubectl delete namespace %s", connectivity.Namespace, limit, err, connectivity.Namespace)
	}
	return nil
}

// await calls done at the interval until it returns nil, at most for the time, and returns its last error.
func await(ctx context.Context, interval, limit time.Duration, done func(context.Context) error) error {
	var last error
	err := every(ctx, interval, limit, func(ctx context.Context) (bool, error) {
		if err := done(ctx); err == nil || ctx.Err() == nil || last == nil {
			last = err // not that of a request that the end of the time stopped
		}
		return last == nil, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && last != nil {
		return last
	}
	return err
}

// setUp creates the Pods, checks that they reach the server without IronLB, and creates the Services.
func (r *connectivityRun) setUp(ctx context.Context) error {
	if err := r.create(ctx, r.scene.ServiceAccount()); err != nil {
		return err
	}
	pods := r.scene.Pods()
	r.say("namespace %s: starting %d Pods of %s on %s", connectivity.Namespace, len(pods), r.scene.Image, strings.Join(r.scene.Nodes, ", "))
	for _, pod := range pods {
		if err := r.create(ctx, pod); err != nil {
			return err
		}
	}
	if err := r.waitPods(ctx, len(pods)); err != nil {
		return err
	}
	if err := r.direct(ctx); err != nil {
		return err
	}
	client := r.pod(connectivity.Client)
	for _, svc := range r.scene.Services(addressesOf(client)) {
		if err := r.create(ctx, svc); err != nil {
			return err
		}
	}
	return nil
}

func (r *connectivityRun) waitPods(ctx context.Context, want int) error {
	before := 0
	err := await(ctx, pollEvery, max(startLimit, r.o.timeout), func(ctx context.Context) error {
		var list corev1.PodList
		if err := r.client.List(ctx, &list, client.InNamespace(connectivity.Namespace)); err != nil {
			return fmt.Errorf("listing the Pods of namespace %s: %w", connectivity.Namespace, err)
		}
		slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
		var waiting []string
		for i := range list.Items {
			if why := notReady(&list.Items[i]); why != "" {
				waiting = append(waiting, fmt.Sprintf("%s on %s: %s", list.Items[i].Name, list.Items[i].Spec.NodeName, why))
			}
		}
		if r.created = list.Items; len(waiting) == 0 && len(list.Items) >= want {
			return nil
		}
		if len(waiting) != before {
			before = len(waiting)
			r.say("waiting for %d of %d Pods", before, want)
		}
		return errors.New(strings.Join(waiting, "; "))
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("the Pods of the test do not start: %w. If nodes cannot get the image %s, name another reference with --image", err, r.scene.Image)
	}
	return err
}

// notReady returns why a Pod is not ready, empty if it is.
func notReady(p *corev1.Pod) string {
	if len(p.Status.PodIPs) > 0 && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}) {
		return ""
	}
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
		if e := c.State.Terminated; e != nil {
			return fmt.Sprintf("ended with exit code %d: %s", e.ExitCode, cmp.Or(e.Message, e.Reason))
		}
	}
	return cmp.Or(p.Status.Message, p.Status.Reason, string(p.Status.Phase), "not started")
}

// direct checks that each client reaches the server at the address of its Pod: what fails here is not a matter of IronLB.
func (r *connectivityRun) direct(ctx context.Context) error {
	for _, addr := range addressesOf(r.pod(connectivity.Server)) {
		for _, pod := range r.clients(addr) {
			err := await(ctx, pollEvery, r.o.timeout, func(ctx context.Context) error {
				all, err := r.ask(ctx, pod, connectivity.URL(addr, connectivity.ServerPort, echo.Hostname), 1)
				return cmp.Or(err, connectivity.Answered(all, 1))
			})
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s does not reach Pod %s at %s, without IronLB: %w. See %s", from(pod), connectivity.Server, addr, err,
					cmp.Or(r.policies(ctx), "policies of the whole cluster, and the network plugin"))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// policies names the NetworkPolicies of the namespace, which another program created; empty if there are none.
func (r *connectivityRun) policies(ctx context.Context) string {
	var list networkingv1.NetworkPolicyList
	if err := r.client.List(ctx, &list, client.InNamespace(connectivity.Namespace)); err != nil || len(list.Items) == 0 {
		return ""
	}
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return fmt.Sprintf("NetworkPolicy %s of namespace %s", strings.Join(names, ", "), connectivity.Namespace)
}

// pod returns a created Pod, nil if the run needs none of the name.
func (r *connectivityRun) pod(name string) *corev1.Pod {
	i := slices.IndexFunc(r.created, func(p corev1.Pod) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &r.created[i]
}

// clients returns the Pods, without the server, that have an address of the same family.
func (r *connectivityRun) clients(addr netip.Addr) (out []*corev1.Pod) {
	for i := range r.created {
		p := &r.created[i]
		if p.Name != connectivity.Server && addressOf(p, addr).IsValid() {
			out = append(out, p)
		}
	}
	return out
}

func addressesOf(p *corev1.Pod) (out []netip.Addr) {
	for _, ip := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// addressOf returns the address of a Pod that has the family of another address.
func addressOf(p *corev1.Pod, like netip.Addr) netip.Addr {
	for _, addr := range addressesOf(p) {
		if addr.Is4() == like.Is4() {
			return addr
		}
	}
	return netip.Addr{}
}

// from names a client.
func from(p *corev1.Pod) string {
	if p.Spec.HostNetwork {
		return "the network of " + p.Spec.NodeName
	}
	return fmt.Sprintf("Pod %s on %s", p.Name, p.Spec.NodeName)
}
