package allocation

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
	klog "k8s.io/klog/v2"
)

// suppressed reports whether an Event of the service controller is dropped. Its Normal Events announce or report each
// of its actions, changed or not; IronLB's own Events report the result once. Its Warning about unavailable nodes
// repeats at each sync and does not matter to an address: the condition NoEligibleNode has the relevant nodes.
func suppressed(kind, reason string) bool {
	return kind == v1.EventTypeNormal || reason == "UnAvailableLoadBalancer"
}

// filteredClient is the filtered client of the service controller: suppressed Events are dropped.
type filteredClient struct{ kubernetes.Interface }

// CoreV1 returns the filtered group of Events and Services.
func (q filteredClient) CoreV1() corev1.CoreV1Interface { return filteredCore{q.Interface.CoreV1()} }

type filteredCore struct{ corev1.CoreV1Interface }

// Events drops the suppressed ones.
func (q filteredCore) Events(namespace string) corev1.EventInterface {
	return filteredEvents{q.CoreV1Interface.Events(namespace)}
}

// Services drops writes of the status and additions of the finalizer: the outcome contains both, in one write.
func (q filteredCore) Services(namespace string) corev1.ServiceInterface {
	return filteredServices{q.CoreV1Interface.Services(namespace)}
}

type filteredServices struct{ corev1.ServiceInterface }

// Patch is called by the service controller for finalizers and for the status.
func (q filteredServices) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*v1.Service, error) {
	var parts struct {
		Metadata struct{ Finalizers []string }
		Status   json.RawMessage
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return nil, fmt.Errorf("reading a patch of Service %s: %w", name, err)
	}
	if parts.Status != nil || slices.Contains(parts.Metadata.Finalizers, servicehelper.LoadBalancerCleanupFinalizer) {
		return &v1.Service{}, nil // the caller ignores it
	}
	return q.ServiceInterface.Patch(ctx, name, pt, data, o, sub...)
}

type filteredEvents struct{ corev1.EventInterface }

// CreateWithEventNamespace is called by the recorder.
func (q filteredEvents) CreateWithEventNamespace(e *v1.Event) (*v1.Event, error) {
	if suppressed(e.Type, e.Reason) {
		return e, nil
	}
	return q.CreateWithEventNamespaceWithContext(context.Background(), e)
}

// PatchWithEventNamespace is called by the recorder for a repeated Event.
func (q filteredEvents) PatchWithEventNamespace(e *v1.Event, data []byte) (*v1.Event, error) {
	if suppressed(e.Type, e.Reason) {
		return e, nil
	}
	return q.PatchWithEventNamespaceWithContext(context.Background(), e, data)
}

// filteredLog returns the context for the service controller: its log has no line for a suppressed Event.
func filteredLog(ctx context.Context) context.Context {
	log := klog.FromContext(ctx)
	return klog.NewContext(ctx, log.WithSink(filteredSink{log.WithCallDepth(1).GetSink()}))
}

// filteredSink drops the log lines of client-go's record.EventBroadcaster.StartStructuredLogging for suppressed Events.
type filteredSink struct{ logr.LogSink }

// Info is called with "type" and "reason" among the values of an Event.
func (s filteredSink) Info(level int, msg string, values ...any) {
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
func (s filteredSink) WithValues(values ...any) logr.LogSink {
	return filteredSink{s.LogSink.WithValues(values...)}
}

// WithName keeps the filter.
func (s filteredSink) WithName(name string) logr.LogSink {
	return filteredSink{s.LogSink.WithName(name)}
}
