package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/condition"
	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/cmd/internal/echo"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/connectivity"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

const (
	// requests is the number of requests of each client after the first answer.
	requests = 10
	// perSecond is the rate of the requests during a failover.
	perSecond = 20
	// settled is how long they continue after the move.
	settled = 2 * time.Second
)

// skipped is the error of a test that does not apply.
type skipped string

func (s skipped) Error() string { return string(s) }

// target is the Service of a test, with its addresses and the cluster at that time.
type target struct {
	cluster   *diagnose.Cluster
	svc       *corev1.Service
	addresses []netip.Addr
	l2, bgp   bool // what covers them
}

// test runs one test.
func (r *connectivityRun) test(ctx context.Context, test connectivity.Test) connectivityOf {
	began := r.now()
	r.tried = nil
	result := connectivityOf{Name: test.Name, Result: resultPassed}
	limited, cancel := context.WithTimeout(ctx, r.o.timeout)
	message, err := r.try(limited, test)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not done within %s (--timeout): %w", r.o.timeout, err)
	}
	result.Message, result.Seconds = message, r.now().Sub(began).Seconds()
	var skip skipped
	switch {
	case err == nil:
	case errors.As(err, &skip):
		result.Result, result.Message = resultSkipped, string(skip)
	default:
		result.Result, result.Message, result.Tried = resultFailed, err.Error(), r.tried
		c, err := r.read(ctx)
		if err != nil {
			result.Message += "; " + err.Error()
		} else if svc := c.Service(connectivity.Namespace, test.Service); svc != nil {
			e := c.Explain(svc)
			result.Explanation = &e
		}
		if names := r.policies(ctx); names != "" {
			result.Message += ". See also " + names
		}
	}
	return result
}

func (r *connectivityRun) try(ctx context.Context, test connectivity.Test) (string, error) {
	t, err := r.target(ctx, test.Service)
	if err != nil {
		return "", err
	}
	if why := connectivity.Skip(test.Name, t.cluster, t.svc, r.o.pool); why != "" {
		return "", skipped(why)
	}
	switch test.Name {
	case connectivity.L2:
		return r.l2(ctx, t)
	case connectivity.BGP:
		return r.bgp(ctx, t)
	case connectivity.DualStack:
		return r.dualStack(ctx, t)
	case connectivity.Hairpin:
		return r.hairpin(ctx, t)
	case connectivity.SourceRanges:
		return r.sourceRanges(ctx, t)
	case connectivity.Local:
		return r.local(ctx, t)
	case connectivity.FromHere:
		return r.fromHere(ctx, t)
	default:
		return r.failover(ctx, t)
	}
}

// print prints the result of a test.
func (r *connectivityRun) print(result connectivityOf) {
	word := map[string]string{resultPassed: r.colour(diagnose.OK, "ok     "), resultFailed: r.colour(diagnose.Problem, "FAIL   "),
		resultSkipped: "skipped"}[result.Result]
	fmt.Fprintf(r.progress, "%s %-13s %5.1fs  %s\n", word, result.Name, result.Seconds, printable(result.Message))
	for _, a := range result.Tried {
		r.say("    tried %s from %s: %s", a.To, a.From, a.Got)
	}
	if e := result.Explanation; e != nil {
		var out bytes.Buffer
		r.writeExplanations(&out, []diagnose.Explanation{*e})
		for line := range strings.Lines(out.String()) {
			fmt.Fprint(r.progress, "    "+line)
		}
	}
}

// target waits until a Service has its addresses.
func (r *connectivityRun) target(ctx context.Context, name string) (*target, error) {
	t := &target{}
	full := ""
	err := await(ctx, readEvery, r.o.timeout, func(ctx context.Context) (err error) {
		if t.cluster, err = r.read(ctx); err != nil {
			return err
		}
		if t.svc = t.cluster.Service(connectivity.Namespace, name); t.svc == nil {
			return fmt.Errorf("there is no Service %s", name)
		}
		t.addresses = servicerecord.IngressOf(t.svc)
		if records, _ := v1alpha1.RecordsOf(t.svc); len(records) > 0 && len(t.addresses) >= len(records) {
			return nil
		}
		c := meta.FindStatusCondition(t.svc.Status.Conditions, v1alpha1.ConditionAllocated)
		switch {
		case c == nil:
			return fmt.Errorf("no address for Service %s", name)
		case c.Reason == string(pools.PoolExhausted) && name != connectivity.Web:
			full = c.Message
			return nil
		}
		return fmt.Errorf("no address for Service %s: %s: %s", name, c.Reason, c.Message)
	})
	if err != nil {
		return nil, err
	}
	if full != "" {
		return nil, skipped("no address is free for another Service: " + full)
	}
	e := t.cluster.Explain(t.svc)
	t.l2, t.bgp = connectivity.Covered(&e)
	return t, nil
}

// sound waits until the steps of the explanation have no problem, and returns the cluster then.
func (r *connectivityRun) sound(ctx context.Context, name string, steps ...diagnose.Step) (*diagnose.Cluster, error) {
	var c *diagnose.Cluster
	err := await(ctx, readEvery, r.o.timeout, func(ctx context.Context) (err error) {
		if c, err = r.read(ctx); err != nil {
			return err
		}
		svc := c.Service(connectivity.Namespace, name)
		if svc == nil {
			return fmt.Errorf("there is no Service %s", name)
		}
		e := c.Explain(svc)
		return connectivity.Problem(&e, steps...)
	})
	return c, err
}

// ask makes requests from a Pod.
func (r *connectivityRun) ask(ctx context.Context, pod *corev1.Pod, url string, n int) ([]echo.Transfer, error) {
	out, err := r.execs.Exec(ctx, pod.Name, connectivity.Container, connectivity.Request(url, n, 0)...)
	all := connectivity.Transfers(out)
	if len(all) == 0 && err != nil {
		err = fmt.Errorf("in Pod %s: %w", pod.Name, err)
		if ctx.Err() == nil { // else the attempt before tells more
			r.note(from(pod), url, err.Error())
		}
		return nil, err
	}
	r.note(from(pod), url, connectivity.Result(all))
	return all, nil
}

// askHere makes requests from this machine.
func (r *connectivityRun) askHere(ctx context.Context, url string, n int) (all []echo.Transfer) {
	for range n {
		all = append(all, r.request(ctx, url))
	}
	r.note("this machine", url, connectivity.Result(all))
	return all
}

// note records an attempt in place of the one before, if that was the same.
func (r *connectivityRun) note(from, to, got string) {
	if n := len(r.tried); n > 0 && r.tried[n-1].From == from && r.tried[n-1].To == to {
		r.tried = r.tried[:n-1]
	}
	r.tried = append(r.tried, attempt{from, to, got})
}

// requestFromHere makes one request from this machine.
func requestFromHere(ctx context.Context, url string) echo.Transfer {
	if !hasRoute(url) {
		return echo.Transfer{Error: connectivity.NoRoute}
	}
	return echo.Request(ctx, url)
}

// hasRoute reports whether this machine has a route to the address of a URL, and a source address. It sends nothing.
func hasRoute(ofURL string) bool {
	u, err := url.Parse(ofURL)
	if err != nil {
		return true // the request tells more
	}
	c, err := net.Dial("udp", u.Host)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// steady waits for the first answer that check accepts, and then requires that all of several answers are accepted.
func (r *connectivityRun) steady(ctx context.Context, ask func(ctx context.Context, n int) ([]echo.Transfer, error),
	check func(all []echo.Transfer, n int) error) error {
	once := func(ctx context.Context, n int) error {
		all, err := ask(ctx, n)
		return cmp.Or(err, check(all, n))
	}
	if err := await(ctx, pollEvery, r.o.timeout, func(ctx context.Context) error { return once(ctx, 1) }); err != nil {
		return err
	}
	return once(ctx, requests)
}

// answered requires that the server answers Pods at the addresses.
func (r *connectivityRun) answered(ctx context.Context, addresses []netip.Addr, by func(netip.Addr) []*corev1.Pod) error {
	for _, addr := range addresses {
		for _, pod := range by(addr) {
			err := r.steady(ctx, func(ctx context.Context, n int) ([]echo.Transfer, error) {
				return r.ask(ctx, pod, connectivity.URL(addr, connectivity.Port, echo.Hostname), n)
			}, connectivity.Answered)
			if err != nil {
				return fmt.Errorf("from %s to %s: %w", from(pod), addr, err)
			}
		}
	}
	return nil
}

// only returns one Pod as the client of each address.
func (r *connectivityRun) only(name string) func(netip.Addr) []*corev1.Pod {
	return func(netip.Addr) []*corev1.Pod { return []*corev1.Pod{r.pod(name)} }
}

func (r *connectivityRun) l2(ctx context.Context, t *target) (string, error) {
	c, err := r.sound(ctx, t.svc.Name, diagnose.StepAdvertisement, diagnose.StepOwner)
	if err != nil {
		return "", err
	}
	var announced, clients []string
	for _, addr := range t.addresses {
		owner := connectivity.Owner(c, addr)
		if owner == "" {
			continue // only BGP announces it
		}
		text, err := r.one(ctx, addr, owner)
		if err != nil {
			return "", fmt.Errorf("%s: %w", addr, err)
		}
		announced = append(announced, text)
	}
	if len(announced) == 0 {
		return "", fmt.Errorf("no VirtualIP names the owner of %s", join(t.addresses))
	}
	if err := r.answered(ctx, t.addresses, r.clients); err != nil {
		return "", err
	}
	for _, p := range r.clients(t.addresses[0]) {
		clients = append(clients, from(p))
	}
	return fmt.Sprintf("%s; answered to %s", strings.Join(announced, "; "), strings.Join(clients, ", ")), nil
}

// one requires that the owner of an address, and no other node, announces it by the state of all speakers.
func (r *connectivityRun) one(ctx context.Context, addr netip.Addr, owner string) (string, error) {
	var announcers map[string][]string
	err := await(ctx, readEvery, r.o.timeout, func(ctx context.Context) (err error) {
		if announcers, err = r.announcers(ctx, addr); apierrors.IsForbidden(err) {
			return nil
		}
		return cmp.Or(err, connectivity.One(announcers, owner))
	})
	switch {
	case err != nil:
		return "", err
	case announcers == nil:
		return fmt.Sprintf("%s announces %s by its own report; you may not ask the other speakers (pods/exec in namespace %s)", owner, addr, r.system), nil
	}
	return fmt.Sprintf("%s alone announces %s on %s", owner, addr, strings.Join(announcers[owner], ", ")), nil
}

// announcers returns the nodes whose speakers announce an address.
func (r *connectivityRun) announcers(ctx context.Context, addr netip.Addr) (map[string][]string, error) {
	all, err := r.ourPods(ctx, nil)
	if err != nil {
		return nil, err
	}
	var parts []part
	for _, pod := range all {
		if pod.Labels[nameLabel] == "ironlb-speaker" && notReady(&pod) == "" {
			parts = append(parts, part{pod.Spec.NodeName, r.o.timeout, func(ctx context.Context) ([]byte, error) {
				return r.pods.Exec(ctx, pod.Name, "ironlb-speaker", "ironlb-speaker", "dump")
			}})
		}
	}
	on := map[string][]string{}
	var failed error
	err = collect(ctx, parts, func(p part, data []byte, err error) {
		var interfaces []string
		if err == nil {
			interfaces, err = connectivity.Announced(data, addr)
		}
		if err != nil {
			failed = fmt.Errorf("the speaker on %s does not tell what it announces: %w", p.path, err)
		}
		if len(interfaces) > 0 {
			on[p.path] = interfaces
		}
	})
	if err := cmp.Or(err, failed); err != nil {
		return nil, err
	}
	return on, nil
}

func (r *connectivityRun) bgp(ctx context.Context, t *target) (string, error) {
	var c *diagnose.Cluster
	err := await(ctx, readEvery, r.o.timeout, func(ctx context.Context) (err error) {
		if c, err = r.read(ctx); err != nil {
			return err
		}
		if problems := connectivity.Sessions(c); len(problems) > 0 {
			return errors.New(strings.Join(problems, "; "))
		}
		if connectivity.Established(c) == 0 {
			return errors.New("no BGP session is established: kubectl ironlb bgp shows the peers of each node")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	sessions := fmt.Sprintf("%d sessions are established", connectivity.Established(c))
	if !t.bgp {
		return sessions + "; no BGPAdvertisement covers the address, so that it is advertised was not tested", nil
	}
	if _, err := r.sound(ctx, t.svc.Name, diagnose.StepSession); err != nil {
		return "", err
	}
	if err := r.answered(ctx, t.addresses, r.clients); err != nil {
		return "", err
	}
	return sessions + " and advertise " + join(t.addresses), nil
}

func (r *connectivityRun) dualStack(ctx context.Context, t *target) (string, error) {
	if len(t.addresses) != len(t.svc.Spec.IPFamilies) {
		return "", fmt.Errorf("only %s for Service %s: it prefers both families, which the cluster and the pools have", join(t.addresses), t.svc.Name)
	}
	if err := r.answered(ctx, t.addresses, r.clients); err != nil {
		return "", err
	}
	return join(t.addresses) + " answer", nil
}

func (r *connectivityRun) hairpin(ctx context.Context, t *target) (string, error) {
	if err := r.answered(ctx, t.addresses, r.only(connectivity.Server)); err != nil {
		return "", err
	}
	return fmt.Sprintf("Pod %s reaches itself at %s", connectivity.Server, join(t.addresses)), nil
}

// sourceRanges tests both clients on one node: what serves the permitted one does not serve the other.
func (r *connectivityRun) sourceRanges(ctx context.Context, t *target) (string, error) {
	permitted, other := r.pod(connectivity.Client), r.pod(connectivity.Other)
	if err := r.answered(ctx, t.addresses, r.only(permitted.Name)); err != nil {
		return "", err
	}
	for _, addr := range t.addresses {
		all, err := r.ask(ctx, other, connectivity.URL(addr, connectivity.Port, echo.Hostname), 2)
		if err := cmp.Or(err, connectivity.Refused(all)); err != nil {
			return "", fmt.Errorf("loadBalancerSourceRanges %s: %s: %w", strings.Join(t.svc.Spec.LoadBalancerSourceRanges, ", "), from(other), err)
		}
	}
	return fmt.Sprintf("%s is served at %s, %s is not", from(permitted), join(t.addresses), from(other)), nil
}

func (r *connectivityRun) local(ctx context.Context, t *target) (string, error) {
	on := r.pod(connectivity.Server).Spec.NodeName
	message := "the endpoint sees the addresses of Pods"
	if t.l2 && t.cluster.Settings.ForwardingOf(t.svc) != v1alpha1.ForwardingDirect {
		if _, err := r.sound(ctx, t.svc.Name, diagnose.StepAdvertisement, diagnose.StepOwner); err != nil {
			return "", err
		}
		for _, addr := range t.addresses {
			if _, err := r.one(ctx, addr, on); err != nil {
				return "", fmt.Errorf("%s must be announced by %s, the only node with an endpoint: %w", addr, on, err)
			}
		}
		message += "; only its node " + on + " announces " + join(t.addresses)
	}
	for _, addr := range t.addresses {
		for _, pod := range r.clients(addr) {
			if pod.Spec.HostNetwork {
				if err := r.answered(ctx, []netip.Addr{addr}, r.only(pod.Name)); err != nil {
					return "", err
				}
				continue
			}
			want := addressOf(pod, addr)
			err := r.steady(ctx, func(ctx context.Context, n int) ([]echo.Transfer, error) {
				return r.ask(ctx, pod, connectivity.URL(addr, connectivity.Port, echo.ClientIP), n)
			}, func(all []echo.Transfer, _ int) error {
				saw, err := connectivity.Seen(all)
				if err == nil && saw != want {
					err = fmt.Errorf("the endpoint sees the address %s, and that of the client is %s", saw, want)
				}
				return err
			})
			if err != nil {
				return "", fmt.Errorf("from %s to %s: %w", from(pod), addr, err)
			}
		}
	}
	return message, nil
}

// fromHere tests from this machine, at the address of Service web, and who the endpoint of the local one sees.
func (r *connectivityRun) fromHere(ctx context.Context, t *target) (string, error) {
	var reached []netip.Addr
	for _, addr := range t.addresses {
		url := connectivity.URL(addr, connectivity.Port, echo.Hostname)
		err := r.steady(ctx, func(ctx context.Context, n int) ([]echo.Transfer, error) { return r.askHere(ctx, url, n), nil },
			func(all []echo.Transfer, n int) error {
				if addr.Is6() && len(t.addresses) > 1 && all[0].Error == connectivity.NoRoute {
					return nil
				}
				return connectivity.Answered(all, n)
			})
		if err != nil {
			return "", fmt.Errorf("from this machine to %s: %w", addr, err)
		}
		if r.tried[len(r.tried)-1].Got != connectivity.NoRoute {
			reached = append(reached, addr)
		}
	}
	message := "this machine is answered at " + join(reached)
	if len(reached) < len(t.addresses) {
		message += "; this machine has no route for IPv6"
	}
	seen, err := r.seenFromHere(ctx, reached)
	if err != nil {
		return "", err
	}
	return message + seen, nil
}

// seenFromHere tests that policy Local keeps the address of this machine.
func (r *connectivityRun) seenFromHere(ctx context.Context, like []netip.Addr) (string, error) {
	t, err := r.target(ctx, connectivity.LocalOnly)
	var skip skipped
	if errors.As(err, &skip) {
		return "; policy Local was not tested: " + string(skip), nil
	}
	if err != nil {
		return "", err
	}
	mine, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("listing the addresses of this machine: %w", err)
	}
	message := ""
	for _, addr := range t.addresses {
		if !slices.ContainsFunc(like, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }) {
			continue
		}
		err := r.steady(ctx, func(ctx context.Context, n int) ([]echo.Transfer, error) {
			return r.askHere(ctx, connectivity.URL(addr, connectivity.Port, echo.ClientIP), n), nil
		}, func(all []echo.Transfer, _ int) error {
			saw, err := connectivity.Seen(all)
			if err != nil {
				return err
			}
			translated, err := connectivity.Kept(saw, mine, t.cluster)
			if message = ""; translated {
				message = fmt.Sprintf("; policy Local sees %s: a router between translates the address", saw)
			}
			return err
		})
		if err != nil {
			return "", fmt.Errorf("from this machine to %s (policy Local): %w", addr, err)
		}
	}
	return cmp.Or(message, "; with policy Local the endpoint sees the address of this machine"), nil
}

// failover moves the address of the Service alone to another node, by a preference for it and a rebalance request.
func (r *connectivityRun) failover(ctx context.Context, t *target) (string, error) {
	c, err := r.sound(ctx, t.svc.Name, diagnose.StepAdvertisement, diagnose.StepOwner)
	if err != nil {
		return "", err
	}
	addr := t.addresses[0]
	vip, to := connectivity.Successor(c, addr)
	if to == nil {
		return "", skipped("no other node can announce " + addr.String())
	}
	owner := vip.Status.Node
	ad, err := connectivity.Preferring(c, t.svc, to)
	if err != nil {
		return "", err
	}
	watch := r.watch(ctx, addr)
	defer watch.stop()
	ad.Annotations = map[string]string{connectivity.AnnotationRun: rand.Text()}
	err = r.create(ctx, ad)
	if apierrors.IsAlreadyExists(err) {
		return "", err
	}
	defer func() { // also after an error: the API server may have stored it
		err := await(context.WithoutCancel(ctx), pollEvery, r.o.timeout, func(ctx context.Context) error {
			_, err := r.delete(ctx, ad, &v1alpha1.L2Advertisement{})
			return err
		})
		if err != nil {
			r.left = fmt.Errorf("deleting L2Advertisement %s: %w. Remove it with: kubectl delete l2advertisement %s", ad.Name, err, ad.Name)
		}
	}()
	if err != nil {
		return "", err
	}
	took, err := r.move(ctx, ad, vip, to.Name)
	if err != nil {
		return "", fmt.Errorf("%s did not move from %s to %s: %w", addr, owner, to.Name, err)
	}
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(settled):
	}
	gaps, err := watch.gaps()
	if err != nil {
		return "", err
	}
	if err := r.answered(ctx, []netip.Addr{addr}, r.clients); err != nil {
		return "", fmt.Errorf("after the move to %s: %w", to.Name, err)
	}
	return fmt.Sprintf("%s moved from %s to %s in %.1fs; longest time without an answer: %s", addr, owner, to.Name, took.Seconds(), gaps), nil
}

// move requests the move once the controller has read the preference.
func (r *connectivityRun) move(ctx context.Context, created *v1alpha1.L2Advertisement, vip *v1alpha1.VirtualIP, to string) (time.Duration, error) {
	ad := &v1alpha1.L2Advertisement{}
	err := await(ctx, pollEvery, r.o.timeout, func(ctx context.Context) error {
		if err := r.client.Get(ctx, client.ObjectKeyFromObject(created), ad); err != nil {
			return fmt.Errorf("reading L2Advertisement %s: %w", created.Name, err)
		}
		if c := meta.FindStatusCondition(ad.Status.Conditions, condition.Ready); c == nil {
			return fmt.Errorf("ironlb-ccm has not read L2Advertisement %s", ad.Name)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	began := r.now()
	if err := r.annotate(ctx, vip, v1alpha1.AnnotationRebalance, began.UTC().Format(time.RFC3339Nano)); err != nil {
		return 0, fmt.Errorf("annotating VirtualIP %s: %w", vip.Name, err)
	}
	err = await(ctx, pollEvery, r.o.timeout, func(ctx context.Context) error {
		if err := r.client.Get(ctx, client.ObjectKeyFromObject(vip), vip); err != nil {
			return fmt.Errorf("reading VirtualIP %s: %w", vip.Name, err)
		}
		switch {
		case vip.Status.Node == to:
			return nil
		case vip.Annotations[v1alpha1.AnnotationRebalance] == "":
			return fmt.Errorf("ironlb-ccm has processed the request, and %s is not better than %s: an L2Advertisement may prefer that, too", to, vip.Status.Node)
		}
		return errors.New("ironlb-ccm has not completed the request: see its log")
	})
	return r.now().Sub(began), err
}

// watching are clients that connect continually.
type watching struct {
	stop    func()
	done    sync.WaitGroup
	results []watched
	note    string // why this machine is not among them
}

type watched struct {
	from string
	all  []echo.Transfer
	err  error
}

// watch starts the clients: the Pod farthest away, and this machine if it takes part.
func (r *connectivityRun) watch(ctx context.Context, addr netip.Addr) *watching {
	ctx, cancel := context.WithCancel(ctx)
	w := &watching{}
	w.stop = func() { cancel(); w.done.Wait() }
	url := connectivity.URL(addr, connectivity.Port, echo.Hostname)
	pod := cmp.Or(r.pod(connectivity.Remote), r.pod(connectivity.Client)) // one node: no Remote
	w.results = append(w.results, watched{from: from(pod)})
	switch {
	case !r.scene.Has(connectivity.FromHere):
		w.note = "Pods are served by their own node: --from-here measures what other clients lose"
	case r.request(ctx, url).Error == connectivity.NoRoute:
		w.note = connectivity.NoRoute
	default:
		w.results = append(w.results, watched{from: "this machine"})
	}
	w.done.Go(func() {
		argv := connectivity.Request(url, int(r.o.timeout.Seconds()+1)*perSecond, perSecond)
		out, err := r.execs.Exec(ctx, pod.Name, connectivity.Container, argv...)
		w.results[0].all, w.results[0].err = connectivity.Transfers(out), err
	})
	if len(w.results) > 1 {
		w.done.Go(func() {
			_ = echo.Requests(ctx, math.MaxInt, perSecond, func(ctx context.Context) echo.Transfer { return r.request(ctx, url) },
				func(t echo.Transfer) error { w.results[1].all = append(w.results[1].all, t); return nil })
		})
	}
	return w
}

// gaps ends the clients, and describes the longest time that each was without an answer.
func (w *watching) gaps() (string, error) {
	w.stop()
	var out []string
	for _, c := range w.results {
		if len(c.all) == 0 {
			return "", fmt.Errorf("%s made no request during the move: %w", c.from, cmp.Or(c.err, errors.New("no output")))
		}
		gap, failed := connectivity.Gap(c.all, time.Second/perSecond)
		text := fmt.Sprintf("%s for %s, %d of %d requests failed", gap.Round(time.Millisecond), c.from, failed, len(c.all))
		if gap > echo.Limit {
			return "", fmt.Errorf("too long without an answer: %s", text)
		}
		out = append(out, text)
	}
	if w.note != "" {
		out = append(out, w.note)
	}
	return strings.Join(out, "; "), nil
}

func join(addresses []netip.Addr) string {
	var out []string
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
