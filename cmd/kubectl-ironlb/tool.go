package main

import (
	"cmp"
	"io"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// access identifies the cluster, as kubectl's flags do.
type access struct{ kubeconfig, context string }

// tool is the shared state of the commands.
type tool struct {
	access access
	dial   func(access) (client.Client, error)
	now    func() time.Time
	client client.Client
	out    io.Writer
}

// has reports whether the text is one of the VirtualIP's addresses, in any notation.
func has(v *v1alpha1.VirtualIP, text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && slices.Contains(v.Spec.Addresses, addr.Unmap().String())
}

// ago returns the age in kubectl's notation.
func (t *tool) ago(at *metav1.Time) string {
	if at.IsZero() {
		return "-"
	}
	return duration.HumanDuration(t.now().Sub(at.Time))
}

func orDash(s string) string { return cmp.Or(s, "-") }
