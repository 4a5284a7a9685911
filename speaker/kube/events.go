package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"

	"github.com/ironlb/ironlb/pools"
	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/routes"
)

// component is the source of the Events.
const component = "ironlb-speaker"

// FailedToStartServiceHealthcheck is the reason of an Event that kube-proxy writes, too.
const FailedToStartServiceHealthcheck = "FailedToStartServiceHealthcheck"

// Events writes Events about Services, BGPPeers and this node, each once per change of its text.
type Events struct {
	node        string
	services    cache.Store
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	sink        record.EventSink

	mu       sync.Mutex
	running  bool
	ports    map[pools.ServiceKey]string
	warnings map[string]string // of the node, by reason
	statuses map[string]report.VIPStatus
	// unreachable are the unreachable nodes; true if this speaker has written an Event about that.
	unreachable map[string]bool
	peers       cache.Store
	latest      map[string]routes.Session // as reported last
	sessions    map[string]recordedSession
	began       time.Time // a session that is older was established before this process
}

func newEvents(node string, services cache.Store, client typedcorev1.EventsGetter) *Events {
	broadcaster := record.NewBroadcaster()
	return &Events{
		node:        node,
		services:    services,
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(kinds, corev1.EventSource{Component: component, Host: node}),
		sink:        createOnly{&typedcorev1.EventSinkImpl{Interface: client.Events("")}},
		ports:       map[pools.ServiceKey]string{},
		warnings:    map[string]string{},
		began:       time.Now(),
	}
}

// createOnly writes a repeated Event as another one, with the number of repetitions: RBAC cannot limit the right to
// change Events to those of the speaker.
type createOnly struct{ record.EventSink }

// Patch creates the Event.
func (c createOnly) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	again := *e
	again.Name, again.ResourceVersion = util.GenerateEventName(e.InvolvedObject.Name, time.Now().UnixNano()), ""
	return c.Create(&again)
}

// kinds are the kinds of the objects of Events.
var kinds = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(s)) // they fail only on a programmer's error
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}()

// Run writes until the context ends. It also writes what was reported before.
func (e *Events) Run(ctx context.Context) error {
	watch := e.broadcaster.StartRecordingToSink(e.sink)
	e.start()
	<-ctx.Done()
	watch.Stop()
	e.broadcaster.Shutdown()
	return nil
}

// start writes what was reported before: the broadcaster keeps nothing for later recorders.
func (e *Events) start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = true
	for key, text := range e.ports {
		e.port(key, text)
	}
	for reason, text := range e.warnings {
		e.warning(reason, text)
	}
	e.recordSessions()
}

// HealthPorts reports the healthCheckNodePorts that cannot be served, the full set each time.
func (e *Events) HealthPorts(failed map[pools.ServiceKey]error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key := range e.ports {
		if _, still := failed[key]; !still {
			delete(e.ports, key)
		}
	}
	for key, err := range failed {
		text := fmt.Sprintf("node %s: %v", e.node, err)
		if e.ports[key] != text {
			e.ports[key] = text
			e.port(key, text)
		}
	}
}

func (e *Events) port(key pools.ServiceKey, text string) {
	if obj, exists, err := e.services.GetByKey(key.String()); e.running && err == nil && exists {
		e.recorder.Event(obj.(*corev1.Service), corev1.EventTypeWarning, FailedToStartServiceHealthcheck, text)
	}
}

// Warn writes a Warning about this node. An empty text means that the reason no longer applies: the same text then
// causes a new Event.
func (e *Events) Warn(reason, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case text == "":
		delete(e.warnings, reason)
	case e.warnings[reason] != text:
		e.warnings[reason] = text
		e.warning(reason, text)
	}
}

func (e *Events) warning(reason, text string) {
	if e.running {
		e.nodeEvent(e.node, corev1.EventTypeWarning, reason, text)
	}
}
