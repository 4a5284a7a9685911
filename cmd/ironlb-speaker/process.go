package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ironlb/ironlb/ipvs/health"
	"github.com/ironlb/ironlb/ipvs/nft"
	"github.com/ironlb/ironlb/speaker"
	"github.com/ironlb/ironlb/speaker/advertise"
	"github.com/ironlb/ironlb/speaker/bgp"
	"github.com/ironlb/ironlb/speaker/kube"
	"github.com/ironlb/ironlb/speaker/kubeproxy"
	"github.com/ironlb/ironlb/speaker/l2"
	"github.com/ironlb/ironlb/speaker/link"
	"github.com/ironlb/ironlb/speaker/member"
	"github.com/ironlb/ironlb/speaker/reach"
	"github.com/ironlb/ironlb/speaker/traffic"
)

// process is the speaker: its parts, assembled and not yet running.
type process struct {
	options
	log       *slog.Logger
	registry  *prometheus.Registry
	apiserver *rest.Config
	listener  net.Listener
	metrics   http.Handler

	trigger   *speaker.Trigger
	healthz   *health.Healthz
	node      speaker.Node
	link      *link.Link
	servers   *virtualServers
	calico    *calico
	api       *kube.Client
	members   *member.Detector
	reach     *reach.Prober           // nil for none
	retained  map[netip.Addr]struct{} // by an earlier process
	announcer *l2.Announcer
	bgp       advertise.Daemon // nil for none
	settings  *sysctls
	proxies   *kubeproxy.Detector
	checks    *nodeChecks
	loop      *speaker.Speaker

	// tasks, and the loop, run until their context ends; an error of one ends the process. closers are called in
	// reverse order when all have ended.
	tasks   []func(context.Context) error
	closers []func()
}

// assemble creates the parts. Each step may use the results of the steps before it, and adds the tasks of its own part.
func assemble(o options, log *slog.Logger) (*process, error) {
	p := &process{options: o, log: log, registry: prometheus.NewRegistry(), trigger: speaker.NewTrigger(), healthz: health.NewHealthz()}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, step := range []func() error{
		p.checkRequirements, p.findAPIServer, p.listen, p.openNode, p.watchCluster, p.watchHost, p.meet,
		p.announce, p.joinBGP, p.serveMetrics, p.serveHealth, p.checkNode, p.addLoop, p.serveDump,
	} {
		if err := step(); err != nil {
			p.close()
			return nil, err
		}
	}
	return p, nil
}

func (p *process) run(task func(context.Context) error) { p.tasks = append(p.tasks, task) }

func (p *process) atEnd(closer func()) { p.closers = append(p.closers, closer) }

func (p *process) close() {
	for _, closer := range slices.Backward(p.closers) {
		closer()
	}
}

func (p *process) findAPIServer() (err error) {
	if p.apiserver, err = clientcmd.BuildConfigFromFlags("", p.kubeconfig); err != nil {
		return fmt.Errorf("find the API server (give --kubeconfig outside of a Pod): %w", err)
	}
	p.apiserver.UserAgent = "ironlb-speaker"
	return nil
}

// listen binds the address of metrics and health early: a second speaker on the node fails here, before it changes
// anything.
func (p *process) listen() (err error) {
	if p.listener, err = net.Listen("tcp", p.metricsAddress); err != nil {
		return fmt.Errorf("listen for metrics and health (choose another --metrics-bind-address, chart value speaker.metricsBindAddress): %w", err)
	}
	p.atEnd(func() { p.listener.Close() })
	return nil
}

func (p *process) openNode() error {
	node, closeNode, err := openNode(p.config, p.log, dataplaneMetric(p.registry))
	if err != nil {
		return err
	}
	p.atEnd(closeNode)
	p.node, p.link, p.servers, p.settings = node, node.Addresses.(*link.Link), node.VirtualServers.(*virtualServers), node.Sysctls.(*sysctls)
	p.calico = newCalico(p.options, p.log)
	p.servers.calico = p.calico.policesOrDid
	return nil
}

func (p *process) watchCluster() (err error) {
	options := kube.Options{
		Node: p.nodeName, IgnoreExcludeLB: p.config.IgnoreExcludeLB,
		ServiceOptions: kube.ServiceOptions{ServiceProxy: p.config.ServiceProxy, Forwarding: p.config.Forwarding},
		Passwords:      p.passwords,
	}
	p.api, err = kube.New(p.apiserver, options, func() {
		p.healthz.Queued(bothFamilies...)
		p.trigger.Now()
	}, p.log)
	if err != nil {
		return err
	}
	p.run(p.api.Source.Run)
	p.run(p.api.Status.Run)
	p.run(p.api.Node.Run)
	p.run(p.api.Events.Run)
	return nil
}

// watchHost passes on the node's addresses at once: before the first plan, because what is served on them must stay.
func (p *process) watchHost() error {
	updateHost(p.link, p.api.Source, p.log)
	updateLinks(p.api.Source, p.log)
	took := updateGateways(p.link, p.api.Source, p.log)
	routed := make(chan struct{}, 1)
	p.run(func(ctx context.Context) error { return followGateways(ctx, routed, took, p.link, p.api.Source, p.log) })
	p.run(func(ctx context.Context) error {
		return link.Watch(ctx, func() {
			p.announcer.Refresh()
			updateLinks(p.api.Source, p.log)
			p.trigger.Resync()
			updateHost(p.link, p.api.Source, p.log)
		}, func() {
			select {
			case routed <- struct{}{}:
			default:
			}
		})
	})
	return nil
}

func (p *process) announce() error {
	refresh := p.config.Announcements.Refresh
	if refresh == 0 {
		refresh = -1 // none
	}
	p.announcer = l2.New(l2.Config{
		Log: p.log, Wake: p.trigger.Now, Resync: p.trigger.Resync, Fresh: p.members.Fresh, Metrics: p.registry,
		Refresh: refresh, Rate: p.config.Announcements.PerSecond,
	})
	p.run(p.announcer.Run)
	return nil
}

// serveHealth serves the node's health and checks that of other nodes.
func (p *process) serveHealth() error {
	ports := health.NewPorts(p.log, p.healthz.Healthy)
	p.atEnd(ports.Close)
	checks := newChecks(p.api.Source, p.log, p.registry)
	p.atEnd(checks.newcomers.Close)
	p.node.HealthPorts, p.node.Checks = healthPorts{ports, p.api.Events.HealthPorts}, checks
	p.run(checks.prober.Run)
	if p.config.ServiceProxy {
		p.run(func(ctx context.Context) error { return p.healthz.Run(ctx, p.log, p.config.HealthzAddress) })
	}
	if addr := p.config.ProxyModeAddress; p.config.ServiceProxy && addr.IsValid() {
		endpoint := health.Endpoint{
			Name: "proxyMode", Field: "proxyModeBindAddress", Addr: addr, Handler: kubeproxy.ModeHandler(p.servers.proxyMode),
		}
		p.run(func(ctx context.Context) error { return endpoint.Run(ctx, p.log) })
	}
	return nil
}

func (p *process) checkNode() error {
	p.checks = newNodeChecks(p.log, p.registry)
	kernel, err := kernelRelease()
	if err != nil {
		return err
	}
	facts := &nodeFacts{process: p, kernel: kernel}
	p.checks.facts = facts.gather
	p.checks.warn, p.checks.report, p.checks.conflict = p.api.Events.Warn, p.api.Node.ReportConditions, p.api.Status.Conflict
	p.proxies = kubeproxy.New(kubeproxy.Config{Log: p.log, Changed: func(f kubeproxy.Facts) {
		facts.proxy.Store(&f)
		p.checks.soon()
	}})
	p.run(p.proxies.Run)
	p.run(func(ctx context.Context) error {
		return keepPolicies(ctx, p.log, nft.Policies{}.Apply, func(problems []nft.Problem) {
			facts.foreign.Store(&problems)
			p.checks.soon()
		})
	})
	p.run(p.checks.run)
	return nil
}

func (p *process) addLoop() error {
	planned := p.plan()
	planned.APIServers = apiServers(p.apiserver.Host)
	config := speaker.Config{
		NodeName:  p.nodeName,
		Plan:      planned,
		Log:       p.log,
		Trigger:   p.trigger,
		Source:    p.api.Source,
		Node:      p.node,
		Announcer: p.announcer,
		BGP:       p.bgp,
		Detector:  p.members,
		Retained:  p.retained,
		MACs:      p.members.MACs,
		Reporter:  p.api.Status,
		Nodes:     p.api.Node,
		Metrics:   speaker.NewMetrics(p.registry),
		Progress:  progress{p.healthz, p.servers.programmed},
		Destroyed: p.proxies.Suspect,
		Traffic:   traffic.New(p.servers, p.config.Traffic, p.log, p.registry),
	}
	if p.reach != nil && p.config.LeaveOutUnreachable {
		config.Reach = p.reach
	}
	p.loop = speaker.New(config)
	p.run(func(ctx context.Context) error {
		return returnMemory(ctx, func() bool { return p.loop.Health().Ready })
	})
	p.run(func(ctx context.Context) error {
		readyz := p.checks.readyz(p.loop.Readyz)
		return serve(ctx, p.listener, p.handler(readyz))
	})
	return nil
}

// joinBGP creates the client of ironlb-bgpd, if configured. Its end does not change the advertisements.
func (p *process) joinBGP() error {
	if p.bgpSocket == "" {
		return nil
	}
	client := bgp.NewClient(bgp.ClientOptions{Socket: p.bgpSocket, Log: p.log, Wake: p.trigger.Now, Metrics: p.registry})
	p.bgp = client
	p.run(client.Run)
	return nil
}

// gcPercent is the growth of the heap between two collections, unless GOGC is set. The start creates garbage, and an
// idle speaker nearly none: memory costs a node more than the collector's CPU time.
const gcPercent = 40

// startedFor is how long a speaker is ready before the memory of its start is returned.
const startedFor = 10 * time.Second

// returnMemory returns the memory that only the start used to the kernel, once. The collector alone would keep it for
// minutes, since an idle speaker hardly allocates.
func returnMemory(ctx context.Context, ready func() bool) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !ready() {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(startedFor):
		debug.FreeOSMemory()
	}
	return nil
}
