package ccm

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/eventually"
)

// TestSpeakerWritesItsOwn: the manifests prevent a speaker from writing the status of another node's speaker, although
// its role permits writing both.
func TestSpeakerWritesItsOwn(t *testing.T) {
	f := use(t, "")
	ctx := f.ctx
	f.must(f.AddNodes(ctx, 2))
	f.apply(`
apiVersion: ironlb.io/v1alpha1
kind: VirtualIP
metadata: {name: 192.0.2.128}
spec: {addresses: [192.0.2.128], nodes: [node1, node2], services: [{namespace: default, name: web}]}
---
apiVersion: ironlb.io/v1alpha1
kind: SpeakerStatus
metadata: {name: node2}
`)
	client := func(node string) *rest.RESTClient {
		t.Helper()
		config, err := f.SpeakerConfig(ctx, node)
		f.must(err)
		config.GroupVersion, config.APIPath, config.NegotiatedSerializer = &v1alpha1.GroupVersion, "/apis", scheme.Codecs.WithoutConversion()
		c, err := rest.RESTClientFor(config)
		f.must(err)
		return c
	}
	speaker, anonymous := client("node1"), client("")
	create := func(c *rest.RESTClient, node string) error {
		return c.Post().Resource("speakerstatuses").Body([]byte(fmt.Sprintf(`{"apiVersion":"ironlb.io/v1alpha1","kind":"SpeakerStatus","metadata":{"name":%q}}`, node))).Do(ctx).Error()
	}
	patch := func(c *rest.RESTClient, resource, name, status string) error {
		return c.Patch("application/merge-patch+json").Resource(resource).Name(name).SubResource("status").Body([]byte(`{"status":` + status + `}`)).Do(ctx).Error()
	}
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	// A policy takes effect shortly after its creation.
	other := "the speaker on Node node1 may not write the SpeakerStatus of Node node2"
	eventually.Nil(t, patience, "the policy to be in force", func(context.Context) error {
		err := patch(speaker, "speakerstatuses", "node2", `{"virtualIPs":1}`)
		return eventually.Unless(err != nil && strings.Contains(err.Error(), other), "error %v", err)
	})
	refused(create(speaker, "node3"), "the speaker on Node node1 may not write the SpeakerStatus of Node node3")
	f.must(create(speaker, "node1"))
	f.must(patch(speaker, "speakerstatuses", "node1", `{"virtualIPs":1}`))
	refused(patch(speaker, "virtualips", "192.0.2.128", `{"node":"node2"}`), "the speaker on Node node1 may not report Node node2 as the owner of VirtualIP 192.0.2.128")
	f.must(patch(speaker, "virtualips", "192.0.2.128", `{"node":"node1"}`))
	f.must(patch(speaker, "virtualips", "192.0.2.128", `{"node":""}`))
	refused(patch(anonymous, "speakerstatuses", "node1", `{"virtualIPs":2}`), "the token of the speaker names no node")
	refused(patch(anonymous, "virtualips", "192.0.2.128", `{"node":""}`), "the token of the speaker names no node")
}
