package ccmtest

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func Rack(name string) func(*v1.Node) {
	return func(n *v1.Node) { n.Labels = map[string]string{"rack": name} }
}

func Node(name string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
	for _, f := range change {
		f(n)
	}
	return n
}

// Reached adds addresses to the node, each "Type address".
func Reached(at ...string) func(*v1.Node) {
	return func(n *v1.Node) {
		for _, a := range at {
			kind, address, _ := strings.Cut(a, " ")
			n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeAddressType(kind), Address: address})
		}
	}
}
