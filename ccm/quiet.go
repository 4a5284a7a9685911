package ccm

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	servicehelper "k8s.io/cloud-provider/service/helpers"
	"k8s.io/klog/v2"
)

// suppressed reports whether an Event of the service controller is left out. Normal ones say that it is about to do
// something or did it, each time and changed or not; our own say what came of it, once. That no node is available it
// repeats at each sync, and it does not matter to an address: the condition NoEligibleNode has what does, with the
// nodes.
func suppressed(kind, reason string) bool {
	return kind == v1.EventTypeNormal || reason == "UnAvailableLoadBalancer"
}

// quiet is the client that the service controller is given: suppressed Events are left out.
type quiet struct{ kubernetes.Interface }

// CoreV1 is the group that Events are in.
func (q quiet) CoreV1() corev1.CoreV1Interface { return quietCore{q.Interface.CoreV1()} }

type quietCore struct{ corev1.CoreV1Interface }

// Events leaves out those suppressed.
func (q quietCore) Events(namespace string) corev1.EventInterface {
	return quietEvents{q.CoreV1Interface.Events(namespace)}
}

// Services leaves out writes of the status and additions of the finalizer: both go with the outcome, in one write.
func (q quietCore) Services(namespace string) corev1.ServiceInterface {
	return quietServices{q.CoreV1Interface.Services(namespace)}
}

type quietServices struct{ corev1.ServiceInterface }

// Patch is what the service controller calls for finalizers and for the status.
func (q quietServices) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*v1.Service, error) {
	var parts struct {
		Metadata struct{ Finalizers []string }
		Status   json.RawMessage
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return nil, fmt.Errorf("reading a patch of Service %s: %w", name, err)
	}
	if parts.Status != nil || slices.Contains(parts.Metadata.Finalizers, servicehelper.LoadBalancerCleanupFinalizer) {
		return &v1.Service{}, nil // the caller does not look at it
	}
	return q.ServiceInterface.Patch(ctx, name, pt, data, o, sub...)
}

type quietEvents struct{ corev1.EventInterface }

// CreateWithEventNamespace is what the recorder calls.
func (q quietEvents) CreateWithEventNamespace(e *v1.Event) (*v1.Event, error) {
	if suppressed(e.Type, e.Reason) {
		return e, nil
	}
	return q.CreateWithEventNamespaceWithContext(context.Background(), e)
}

// PatchWithEventNamespace is what the recorder calls when it said the same before.
func (q quietEvents) PatchWithEventNamespace(e *v1.Event, data []byte) (*v1.Event, error) {
	if suppressed(e.Type, e.Reason) {
		return e, nil
	}
	return q.PatchWithEventNamespaceWithContext(context.Background(), e, data)
}

// quietLog returns the context for the service controller: its log has no line for a suppressed Event.
func quietLog(ctx context.Context) context.Context {
	log := klog.FromContext(ctx)
	return klog.NewContext(ctx, log.WithSink(quietSink{log.WithCallDepth(1).GetSink()}))
}

// quietSink leaves out what client-go's record.EventBroadcaster.StartStructuredLogging logs of suppressed Events.
type quietSink struct{ logr.LogSink }

// Info is called with "type" and "reason" among the values of an Event.
func (s quietSink) Info(level int, msg string, values ...any) {
	var kind, reason string
	for i := 0; i+1 < len(values); i += 2 {
		switch text, _ := values[i+1].(string); values[i] {
		case "type":
			kind = text
		case "reason":
			reason = text
		}
	}
	if msg != "Event occurred" || !suppressed(kind, reason) {
		s.LogSink.Info(level, msg, values...)
	}
}

// WithValues keeps the filter.
func (s quietSink) WithValues(values ...any) logr.LogSink {
	return quietSink{s.LogSink.WithValues(values...)}
}

// WithName keeps the filter.
func (s quietSink) WithName(name string) logr.LogSink { return quietSink{s.LogSink.WithName(name)} }
