package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/ironlb/ironlb/pools/v1alpha1"
	"github.com/ironlb/ironlb/test/lab/probe"
	"github.com/ironlb/ironlb/test/lab/router"
)

// change is a change of the endpoint, with all measured times.
type change struct {
	name         string
	ready        bool
	write        []time.Duration
	wire, kernel map[*tor][]time.Duration
}

// updates adds and removes a ready endpoint.
func (b *bench) updates(ctx context.Context) error {
	if err := b.peers(ctx, "gracefulRestart: true", router.Neighbor{}); err != nil {
		return err
	}
	const name = "local"
	addr := address(0)
	if err := b.service(ctx, name, corev1.ServiceExternalTrafficPolicyLocal); err != nil {
		return err
	}
	// Another Service exists all the time, as a check that the sessions work.
	if err := b.service(ctx, "steady", corev1.ServiceExternalTrafficPolicyCluster); err != nil {
		return err
	}
	if err := b.endpoint(ctx, "steady", true); err != nil {
		return err
	}
	if err := b.routed(ctx, address(1), b.c.Nodes...); err != nil {
		return err
	}
	wires := map[*tor]*wire{}
	for _, r := range b.tors {
		w, err := watch(r.machine.Namespace, addr)
		if err != nil {
			return err
		}
		defer w.close()
		wires[r] = w
	}
	changes := []*change{{name: "ready", ready: true}, {name: "gone"}}
	for _, c := range changes {
		c.wire, c.kernel = map[*tor][]time.Duration{}, map[*tor][]time.Duration{}
	}
	if err := b.endpoint(ctx, name, false); err != nil {
		return err
	}
	if err := b.routed(ctx, addr); err != nil {
		return err
	}
	for i := range b.o.updates {
		for _, c := range changes {
			if err := b.update(ctx, name, c, wires); err != nil {
				return fmt.Errorf("%s, round %d: %w", c.name, i+1, err)
			}
			line := fmt.Sprintf("update %s %d/%d: written after %v;", c.name, i+1, b.o.updates, c.write[i])
			for _, r := range b.tors {
				line += fmt.Sprintf(" %s: on the wire after %v, in the kernel after %v;", r.name, c.wire[r][i], c.kernel[r][i])
			}
			fmt.Fprintln(os.Stderr, line)
		}
	}
	for _, c := range changes {
		for _, r := range b.tors {
			written := map[string]float64{"write-p50-ms": ms(quantile(c.write, 0.5)), "write-p99-ms": ms(quantile(c.write, 0.99))}
			result("update/"+c.name+"/wire/"+r.name, c.wire[r], written)
			result("update/"+c.name+"/kernel/"+r.name, c.kernel[r], nil)
		}
	}
	return nil
}

// update makes a change and waits for its effect.
func (b *bench) update(ctx context.Context, name string, c *change, wires map[*tor]*wire) error {
	addr := address(0)
	began := time.Now()
	if err := b.endpoint(ctx, name, c.ready); err != nil {
		return err
	}
	c.write = append(c.write, time.Since(began))
	for _, r := range b.tors {
		wire, err := wires[r].after(ctx, began)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		kernel, err := r.after(ctx, began, func(e router.Event) bool { return e.Prefix.Addr() == addr && e.Deleted != c.ready })
		if err != nil {
			return err
		}
		c.wire[r], c.kernel[r] = append(c.wire[r], wire), append(c.kernel[r], kernel)
	}
	return nil
}

// service creates a Service without a selector; "local" has the first address, "steady" the second.
func (b *bench) service(ctx context.Context, name string, policy corev1.ServiceExternalTrafficPolicy) error {
	addr := map[string]int{"local": 0, "steady": 1}[name]
	_, err := b.c.Kube.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationAddresses: address(addr).String()}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: policy,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(probe.PortHTTP)}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// endpoint writes the EndpointSlice of a Service: with an endpoint on the first node, or with none. No process needs to
// serve there.
func (b *bench) endpoint(ctx context.Context, service string, ready bool) error {
	node := b.c.Node(0)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](probe.PortHTTP), Protocol: ptr.To(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{},
	}
	if ready {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{node.PodCIDR.Addr().Next().Next().Next().String()}, NodeName: ptr.To(node.Name),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)},
		})
	}
	slices := b.c.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	_, err := slices.Update(ctx, slice, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(ctx, slice, metav1.CreateOptions{})
	}
	return errors.Join(err)
}
