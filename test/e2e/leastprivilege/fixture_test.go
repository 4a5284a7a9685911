package leastprivilege

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/eventually"
	"github.com/ironlb/ironlb/test/lab"
	"github.com/ironlb/ironlb/test/lab/manifest"
	"github.com/ironlb/ironlb/test/lab/process"
	"github.com/ironlb/ironlb/test/lab/router"
)

const (
	nodeASN, routerASN = 65001, 65002

	ccm     = "ironlb-ccm"
	speaker = "ironlb-speaker"
	bgpd    = "ironlb-bgpd"
	prepare = "prepare"

	password = "open-sesame"
)

// limits of a check. Without "watch" a client lists repeatedly, with pauses that double from 0.8 s on. Successive
// rounds of changes find the first pause longer than prompt.
type limits struct {
	first  time.Duration // until the first effect, counted from the start of the program
	prompt time.Duration // from a change to its effect
}

// pause between two looks for an effect.
const pause = 50 * time.Millisecond

// rounds of changes: the pause after the fourth list is at least 6.4 s.
const rounds = 6

var (
	generous = limits{first: time.Minute, prompt: 20 * time.Second}
	strict   = limits{first: 10 * time.Second, prompt: 6 * time.Second}
)

// fixture is a lab with one node, a router and all programs.
type fixture struct {
	*lab.Cluster
	node   *lab.Node
	bird   *router.BIRD
	config string // the speaker's
	audit  string // audit log of the product's requests
	ca     authority

	mutex sync.Mutex // taken by each test for its exclusive use of the fixture

	mu      sync.Mutex // guards lacks
	lacks   *manifest.Right
	manager *process.Process
	limits  limits
	seq     int
	block   int
}

// policy of the audit log: requests of the product, without their contents.
const policy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts:ironlb-system"]
  - level: None
`

func newFixture(ctx context.Context) (_ *fixture, err error) {
	dir, err := os.MkdirTemp("", "ironlb-leastprivilege-")
	if err != nil {
		return nil, err
	}
	f := &fixture{audit: filepath.Join(dir, "audit.log"), limits: generous}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(policy), 0o600); err != nil {
		return nil, err
	}
	if f.ca, err = newAuthority(dir); err != nil {
		return nil, err
	}
	f.Cluster, err = lab.New(ctx, lab.Config{
		Nodes: 1, Kernel: lab.Native, BGP: true, Contained: true, Progress: os.Stderr,
		NodeGrace: time.Hour, // Nodes without a kubelet keep their state
		APIServer: []string{
			// By default an API server of Kubernetes 1.34 or later serves lists by watches; earlier ones do not, and
			// need the verb.
			"--feature-gates=WatchList=false",
			"--audit-policy-file=" + filepath.Join(dir, "policy.yaml"), "--audit-log-path=" + f.audit,
			"--client-ca-file=" + f.ca.file,
		},
		Privileges: func(p *manifest.Privileges) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.lacks != nil {
				without(p, *f.lacks)
			}
		},
	})
	if err != nil {
		return f, err
	}
	f.node, f.config = f.Nodes[0], filepath.Join(f.Dir, "speaker.yaml")
	// serviceProxy needs one rule more than the default, and all of its rules. The size of conntrack's table belongs to
	// the initial namespace.
	if err := os.WriteFile(f.config, []byte("serviceProxy: true\ndataplane: nftables\nconntrack: {maxPerCore: 0, min: 0}\n"), 0o600); err != nil {
		return f, err
	}
	if _, err := f.AddPod(ctx, lab.PodSpec{Name: "web", Node: f.node, Labels: map[string]string{"app": "web"}}); err != nil {
		return f, err
	}
	place := router.Place{Host: f.Router.Host(), Namespace: "/run/netns/" + f.Router.Namespace, Logs: f.Dir}
	f.bird, err = router.StartBIRD(ctx, place, router.Config{ASN: routerASN, ID: f.Router.Addr, Neighbors: []router.Neighbor{
		{Name: "plain", Address: f.node.Addr, ASN: nodeASN, BFD: router.BFDTimers{Interval: 300 * time.Millisecond, Multiplier: 3}},
		{Name: "secret", Address: f.node.Addr6, ASN: nodeASN, Password: password},
	}})
	if err != nil {
		return f, err
	}
	if err := f.reset(ctx); err != nil {
		return f, err
	}
	return f, errors.Join(f.start(ctx, ccm), f.start(ctx, speaker))
}

func (f *fixture) close() error {
	errs := []error{os.RemoveAll(filepath.Dir(f.audit))}
	if f.bird != nil {
		errs = append(errs, f.bird.Stop())
	}
	if f.Cluster != nil {
		errs = append(errs, f.Cluster.Close())
	}
	return errors.Join(errs...)
}

// program returns the program of the container. The init container's work takes effect when the speaker starts.
func program(container string) string {
	if container == prepare {
		return speaker
	}
	return container
}

// stop kills a program, as the kernel kills a container that is out of memory.
func (f *fixture) stop(name string) error {
	switch name {
	case ccm:
		if f.manager == nil {
			return nil
		}
		return f.manager.Kill()
	case speaker:
		return f.node.KillSpeaker()
	}
	return f.node.KillBGP()
}

// start starts a program. A missing right may end it, which the checks find.
func (f *fixture) start(ctx context.Context, name string) error {
	switch name {
	case ccm:
		p, err := f.StartCCM(ctx, "--probe-bind-address=127.0.0.1:7474")
		if err != nil {
			return err
		}
		p.Expect()
		f.manager = p
		return nil
	case speaker:
		// State programmed by an earlier run must not serve this one.
		if _, err := f.node.Exec(ctx, f.Program(speaker), "cleanup", "--config", f.config); err != nil {
			return err
		}
		// "prepare" must set this sysctl.
		if _, err := f.node.Exec(ctx, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=0"); err != nil {
			return err
		}
		if err := f.node.StartSpeaker(ctx, "--config", f.config); err != nil {
			return err
		}
		f.node.Speaker().Expect()
		f.node.BGP().Expect()
		return nil
	}
	if err := f.node.StartBGP(ctx); err != nil {
		return err
	}
	f.node.BGP().Expect()
	return nil
}

// soon waits for an effect within the limit of a started program.
func (f *fixture) soon(ctx context.Context, effect func(context.Context) error) error {
	return eventually.Poll(ctx, pause, f.limits.first, "the effect", effect)
}

// each applies changes one after the other, and waits for the effect of each.
func (f *fixture) each(ctx context.Context, change func(i int) error, effect func(ctx context.Context, i int) error) error {
	for i := range rounds {
		if err := change(i); err != nil {
			return err
		}
		limit := f.limits.prompt
		if i == 0 {
			limit = f.limits.first
		}
		what := fmt.Sprintf("the effect of change %d of %d", i+1, rounds)
		if err := eventually.Poll(ctx, pause, limit, what, func(ctx context.Context) error { return effect(ctx, i) }); err != nil {
			return err
		}
	}
	return nil
}

// name returns an unused name.
func (f *fixture) name(prefix string) string {
	f.seq++
	return fmt.Sprintf("%s-%d", prefix, f.seq)
}

// addresses returns a /30 of the LAN that is unused until the next reset.
func (f *fixture) addresses() netip.Prefix {
	a := lab.FreeRange.Addr().As4()
	a[3] += 16 + byte(4*f.block)
	f.block++
	return netip.PrefixFrom(netip.AddrFrom4(a), 30)
}

// object decodes YAML.
func object(format string, args ...any) (*unstructured.Unstructured, error) {
	text := fmt.Sprintf(format, args...)
	o := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(text), &o.Object); err != nil {
		return nil, fmt.Errorf("%w in\n%s", err, text)
	}
	return o, nil
}

// create creates an object.
func (f *fixture) create(ctx context.Context, format string, args ...any) error {
	o, err := object(format, args...)
	if err != nil {
		return err
	}
	if err := f.Objects.Create(ctx, o); err != nil {
		return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// own creates an object of IronLB's kinds.
func (f *fixture) own(ctx context.Context, kind, name, spec string, args ...any) error {
	return f.create(ctx, "apiVersion: ironlb.io/v1alpha1\nkind: %s\nmetadata: {name: %s, labels: {name: %s}}\nspec: %s\n", kind, name, name, fmt.Sprintf(spec, args...))
}

// service creates a Service of type LoadBalancer; fields are added to its annotations and its spec.
func (f *fixture) service(ctx context.Context, name, annotations, spec string) error {
	return f.create(ctx, "apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default, labels: {name: %s}, annotations: {%s}}\n"+
		"spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: http}], %s}\n", name, name, annotations, spec)
}

// patch merges into an object; subresources are "status" or none.
func (f *fixture) patch(ctx context.Context, o client.Object, patch string, subresource ...string) error {
	text, err := yaml.YAMLToJSONStrict([]byte(patch))
	if err != nil {
		return fmt.Errorf("%w in %s", err, patch)
	}
	p := client.RawPatch(types.MergePatchType, text)
	if len(subresource) > 0 {
		return f.Objects.Status().Patch(ctx, o, p)
	}
	return f.Objects.Patch(ctx, o, p)
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// ownKinds returns the product's kinds.
func ownKinds() []client.Object {
	return []client.Object{
		&v1alpha1.VirtualIP{}, &v1alpha1.SpeakerStatus{}, &v1alpha1.L2Advertisement{}, &v1alpha1.BGPAdvertisement{}, &v1alpha1.BGPPeer{},
		&v1alpha1.BFDProfile{}, &v1alpha1.Community{}, &v1alpha1.IPAddressPool{},
	}
}

// reset removes all objects created by checks and programs, and creates those required by every check: pool lan with
// its L2Advertisement, and BGPPeer router.
func (f *fixture) reset(ctx context.Context) error {
	for _, kind := range ownKinds() {
		if _, is := kind.(*v1alpha1.VirtualIP); is {
			continue // after the Services
		}
		if err := f.Objects.DeleteAllOf(ctx, kind); err != nil {
			return err
		}
	}
	err := eventually.Poll(ctx, pause, time.Minute, "the end of the objects", func(ctx context.Context) error {
		var services corev1.ServiceList
		if err := f.Objects.List(ctx, &services); err != nil {
			return err
		}
		left := 0
		for i := range services.Items {
			svc := &services.Items[i]
			if svc.Name == "kubernetes" {
				continue
			}
			left++
			if err := client.IgnoreNotFound(f.Objects.Delete(ctx, svc)); err != nil {
				return err
			}
			if err := client.IgnoreNotFound(f.patch(ctx, svc, "{metadata: {finalizers: []}}")); err != nil {
				return err
			}
		}
		if left > 0 {
			return fmt.Errorf("%d Services are left", left)
		}
		if err := f.Objects.DeleteAllOf(ctx, &v1alpha1.VirtualIP{}); err != nil {
			return err
		}
		var vips v1alpha1.VirtualIPList
		if err := f.Objects.List(ctx, &vips); err != nil || len(vips.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d VirtualIPs are left", len(vips.Items)))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	system := client.InNamespace(lab.SystemNamespace)
	var nodes corev1.NodeList
	var cidrs networkingv1.ServiceCIDRList
	errs := []error{
		f.Objects.DeleteAllOf(ctx, &coordinationv1.Lease{}, system),
		f.Objects.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(v1alpha1.PasswordNamespace)),
		f.Objects.DeleteAllOf(ctx, &corev1.Event{}, client.InNamespace(metav1.NamespaceDefault)),
		f.Objects.List(ctx, &nodes), f.Objects.List(ctx, &cidrs),
	}
	for i := range nodes.Items {
		if nodes.Items[i].Name != f.node.Name {
			errs = append(errs, f.Objects.Delete(ctx, &nodes.Items[i]))
		}
	}
	for i := range cidrs.Items {
		if cidrs.Items[i].Name != "kubernetes" {
			errs = append(errs, client.IgnoreNotFound(f.Objects.Delete(ctx, &cidrs.Items[i])))
		}
	}
	errs = append(errs, f.patch(ctx, &corev1.Node{ObjectMeta: named(f.node.Name)}, "{metadata: {labels: {test: null}}}"))
	// A reply to ARP must be from this run.
	if _, err := f.Client.Exec(ctx, "ip", "neigh", "flush", "all"); err != nil {
		errs = append(errs, err)
	}
	f.block = 0
	errs = append(errs,
		f.own(ctx, "IPAddressPool", "lan", "{addresses: [%q]}", lab.FreeRange),
		f.own(ctx, "L2Advertisement", "lan", "{ipAddressPools: [lan]}"),
		f.own(ctx, "BFDProfile", "usual", "{}"),
		f.own(ctx, "BGPPeer", "router", "{myASN: %d, peerASN: %d, peerAddress: %q, connectTime: 1s, bfdProfile: usual}", nodeASN, routerASN, f.Router.Addr))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return nil
}

// remove removes the right; restore restores it. Both wait until the change takes effect.
func (f *fixture) remove(ctx context.Context, r manifest.Right) error {
	f.mu.Lock()
	f.lacks = &r
	f.mu.Unlock()
	if !r.InAPI() {
		return nil
	}
	if err := f.change(ctx, r, true); err != nil {
		return fmt.Errorf("remove %v: %w", r, err)
	}
	return f.inForce(ctx, r, false)
}

func (f *fixture) restore(ctx context.Context, r manifest.Right) error {
	f.mu.Lock()
	f.lacks = nil
	f.mu.Unlock()
	if !r.InAPI() {
		return nil
	}
	if err := f.change(ctx, r, false); err != nil {
		return fmt.Errorf("restore %v: %w", r, err)
	}
	return f.inForce(ctx, r, true)
}

// change applies the manifest of the object that grants the right, without the right or unchanged.
func (f *fixture) change(ctx context.Context, r manifest.Right, without bool) error {
	docs, err := manifest.Load(root, manifest.File)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(docs, func(d manifest.Document) bool {
		return d.Kind == r.Kind && d.Name == r.Object && d.Namespace == r.Namespace
	})
	if i < 0 {
		return fmt.Errorf("%s %s is not in the manifests", r.Kind, r.Object)
	}
	meta := metav1.ObjectMeta{Name: r.Object, Namespace: r.Namespace}
	switch r.Kind {
	case "ClusterRoleBinding", "RoleBinding":
		var o client.Object = &rbacv1.ClusterRoleBinding{ObjectMeta: meta}
		if r.Kind == "RoleBinding" {
			o = &rbacv1.RoleBinding{ObjectMeta: meta}
		}
		if without {
			return f.Objects.Delete(ctx, o)
		}
		return client.IgnoreAlreadyExists(f.create(ctx, "%s", docs[i].Text))
	}
	var role rbacv1.ClusterRole // a Role has the same fields
	if err := yaml.Unmarshal([]byte(docs[i].Text), &role); err != nil {
		return err
	}
	if without {
		role.Rules = slices.DeleteFunc(manifest.Rules(role.Rules), func(rule rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(rule, r.Rule) })
	}
	patch, err := json.Marshal(map[string]any{"rules": role.Rules})
	if err != nil {
		return err
	}
	var o client.Object = &rbacv1.ClusterRole{ObjectMeta: meta}
	if r.Kind == "Role" {
		o = &rbacv1.Role{ObjectMeta: meta}
	}
	return f.patch(ctx, o, string(patch))
}

// inForce waits until the API server's authorizer gives the wanted answer.
func (f *fixture) inForce(ctx context.Context, r manifest.Right, want bool) error {
	review := r.Review(lab.SystemNamespace)
	return eventually.Poll(ctx, pause, 20*time.Second, "the authorizer's answer", func(ctx context.Context) error {
		answer, err := f.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && answer.Status.Allowed != want {
			err = fmt.Errorf("%s may %v: %t, want %t; does another rule grant it, too?", r.Account, r, answer.Status.Allowed, want)
		}
		return err
	})
}

// refused counts the requests refused by the API server since the log had this size that the right would have allowed.
func (f *fixture) refused(r manifest.Right, since int64) (n int, err error) {
	text, err := os.ReadFile(f.audit)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text[since:]))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb      string `json:"verb"`
			User      struct{ Username string }
			ObjectRef struct {
				Resource, APIGroup, Subresource string
			}
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			continue // an incomplete line
		}
		resource := event.ObjectRef.Resource
		if event.ObjectRef.Subresource != "" {
			resource += "/" + event.ObjectRef.Subresource
		}
		if event.ResponseStatus.Code != 403 || !strings.HasSuffix(event.User.Username, ":"+r.Account) {
			continue
		}
		if !r.IsRule() || event.Verb == r.Rule.Verbs[0] && event.ObjectRef.APIGroup == r.Rule.APIGroups[0] && resource == r.Rule.Resources[0] {
			n++
		}
	}
	return n, lines.Err()
}

func (f *fixture) auditSize() (int64, error) {
	info, err := os.Stat(f.audit)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// get reads an object of the cluster.
func (f *fixture) get(ctx context.Context, o client.Object, name string) error {
	key := client.ObjectKey{Name: name}
	switch o.(type) {
	case *corev1.Service:
		key.Namespace = metav1.NamespaceDefault
	case *coordinationv1.Lease:
		key.Namespace = lab.SystemNamespace
	}
	return f.Objects.Get(ctx, key, o)
}

// gone returns nil if the object does not exist.
func (f *fixture) gone(ctx context.Context, o client.Object, name string) error {
	err := f.get(ctx, o, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("%T %s is still there", o, name))
}
