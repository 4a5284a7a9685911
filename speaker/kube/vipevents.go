package kube

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/speaker/report"
	"github.com/ironlb/ironlb/speaker/view"
)

// VIPs writes Events about the Services of VirtualIPs that this node took over from another one. Each call passes the
// full set. ironlb-ccm warns of conflicts and of Services that are not forwarded directly, once for all nodes.
func (e *Events) VIPs(vips cache.Store, statuses map[string]report.VIPStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, status := range statuses {
		before := e.statuses[name]
		lost := status.Moved == view.OwnerLost && status.Cause != view.NoLocalEndpoint // else it followed the endpoint
		if status.Announced && !status.At.Equal(before.At) && (lost || status.Moved == view.TakenOver) {
			text := "node " + e.node + " answers for " + name
			if status.From != "" {
				text += " in place of node " + status.From
			}
			if status.Took > 0 {
				text += " after " + max(status.Took.Round(time.Millisecond), time.Millisecond).String()
			}
			if lost {
				text += ": " + causes[status.Cause]
			}
			e.aboutVIP(vips, name, corev1.EventTypeNormal, string(status.Moved), text)
		}
	}
	e.statuses = statuses
}

// causes explain why an earlier owner answers no more.
var causes = map[view.Reason]string{
	view.NodeNotAlive:    "its speaker is not received",
	view.Stopping:        "its speaker is being stopped",
	view.Excluded:        "it is excluded by label, being deleted or without a network",
	view.NoAdvertisement: "no L2Advertisement covers the address there any more",
	view.NodeDeclined:    "it released the address; see the log of its speaker",
}

// aboutVIP writes an Event about every Service of a VirtualIP. Reports before Run are not written: they are outdated
// then.
func (e *Events) aboutVIP(vips cache.Store, name, kind, reason, text string) {
	obj, exists, err := vips.GetByKey(name)
	if !e.running || err != nil || !exists {
		return
	}
	for _, ref := range obj.(*v1alpha1.VirtualIP).Spec.Services {
		if svc, exists, err := e.services.GetByKey(ref.Namespace + "/" + ref.Name); err == nil && exists {
			e.recorder.Event(svc.(*corev1.Service), kind, reason, text)
		}
	}
}
