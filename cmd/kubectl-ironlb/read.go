package main

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/diagnose"
	"github.com/ironlb/ironlb/cmd/kubectl-ironlb/metallb"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// resources are those that the program reads or writes, so that it needs no discovery: a broken aggregated API does not
// matter.
var resources = []resource{
	{corev1.SchemeGroupVersion.WithKind("Service"), "services", meta.RESTScopeNamespace},
	{corev1.SchemeGroupVersion.WithKind("Pod"), "pods", meta.RESTScopeNamespace},
	{corev1.SchemeGroupVersion.WithKind("Secret"), "secrets", meta.RESTScopeNamespace},
	{corev1.SchemeGroupVersion.WithKind("ConfigMap"), "configmaps", meta.RESTScopeNamespace},
	{discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), "endpointslices", meta.RESTScopeNamespace},
	{corev1.SchemeGroupVersion.WithKind("Node"), "nodes", meta.RESTScopeRoot},
	{corev1.SchemeGroupVersion.WithKind("Namespace"), "namespaces", meta.RESTScopeRoot},
	{corev1.SchemeGroupVersion.WithKind("Event"), "events", meta.RESTScopeNamespace},
	{appsv1.SchemeGroupVersion.WithKind("Deployment"), "deployments", meta.RESTScopeNamespace},
	{appsv1.SchemeGroupVersion.WithKind("DaemonSet"), "daemonsets", meta.RESTScopeNamespace},
	{coordinationv1.SchemeGroupVersion.WithKind("Lease"), "leases", meta.RESTScopeNamespace},
	{v1alpha1.GroupVersion.WithKind("IPAddressPool"), "ipaddresspools", meta.RESTScopeRoot},
	{v1alpha1.GroupVersion.WithKind("L2Advertisement"), "l2advertisements", meta.RESTScopeRoot},
	{v1alpha1.GroupVersion.WithKind("BGPAdvertisement"), "bgpadvertisements", meta.RESTScopeRoot},
	{v1alpha1.GroupVersion.WithKind("BGPPeer"), "bgppeers", meta.RESTScopeRoot},
	{v1alpha1.GroupVersion.WithKind("BFDProfile"), "bfdprofiles", meta.RESTScopeRoot},
	{v1alpha1.GroupVersion.WithKind("Community"), "communities", meta.RESTScopeRoot},
	{v1alpha1.GroupVersion.WithKind("VirtualIP"), "virtualips", meta.RESTScopeRoot},
	{v1alpha1.GroupVersion.WithKind("SpeakerStatus"), "speakerstatuses", meta.RESTScopeRoot},
	{metallbVersion1.WithKind("IPAddressPool"), "ipaddresspools", meta.RESTScopeNamespace},
	{metallbVersion1.WithKind("L2Advertisement"), "l2advertisements", meta.RESTScopeNamespace},
	{metallbVersion1.WithKind("BGPAdvertisement"), "bgpadvertisements", meta.RESTScopeNamespace},
	{metallbVersion1.WithKind("BGPPeer"), "bgppeers", meta.RESTScopeNamespace},
	{metallbVersion2.WithKind("BGPPeer"), "bgppeers", meta.RESTScopeNamespace},
	{metallbVersion1.WithKind("BFDProfile"), "bfdprofiles", meta.RESTScopeNamespace},
	{metallbVersion1.WithKind("Community"), "communities", meta.RESTScopeNamespace},
}

// ofTest are further ones, of connectivity test alone.
var ofTest = []resource{
	{corev1.SchemeGroupVersion.WithKind("ServiceAccount"), "serviceaccounts", meta.RESTScopeNamespace},
	{networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), "networkpolicies", meta.RESTScopeNamespace},
}

type resource struct {
	kind     schema.GroupVersionKind
	resource string
	scope    meta.RESTScope
}

// The versions of MetalLB's group.
var (
	metallbVersion1 = schema.GroupVersion{Group: metallb.Group, Version: "v1beta1"}
	metallbVersion2 = schema.GroupVersion{Group: metallb.Group, Version: "v1beta2"}
)

// connect returns a client of the kinds.
func connect(flags *genericclioptions.ConfigFlags) (client.Client, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1 // a command makes few requests
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, r := range slices.Concat(resources, ofTest) {
		plural := r.kind.GroupVersion().WithResource(r.resource)
		mapper.AddSpecific(r.kind, plural, r.kind.GroupVersion().WithResource(strings.ToLower(r.kind.Kind)), r.scope)
	}
	cl, err := client.New(config, client.Options{Scheme: kinds(), Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("preparing the client: %w", err)
	}
	return cl, nil
}

// kinds returns the scheme.
func kinds() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // a programmer's error: a kind is registered twice
		}
	}
	return s
}

// read lists the objects of a diagnosis. A kind that cannot be listed is noted, unless none can. Users who may read one
// namespace only get its Services.
func (t *tool) read(ctx context.Context) (*diagnose.Cluster, error) {
	namespace, err := t.namespace()
	if err != nil {
		return nil, err
	}
	c := &diagnose.Cluster{Now: t.now(), Unread: map[string]string{}}
	var services corev1.ServiceList
	var endpoints discoveryv1.EndpointSliceList
	var nodes corev1.NodeList
	var namespaces corev1.NamespaceList
	var pools v1alpha1.IPAddressPoolList
	var l2 v1alpha1.L2AdvertisementList
	var bgp v1alpha1.BGPAdvertisementList
	var peers v1alpha1.BGPPeerList
	var vips v1alpha1.VirtualIPList
	var speakers v1alpha1.SpeakerStatusList
	lists := []client.ObjectList{&services, &endpoints, &nodes, &namespaces, &pools, &l2, &bgp, &peers, &vips, &speakers}
	errs := make([]error, len(lists))
	var group errgroup.Group
	for i, l := range lists {
		group.Go(func() error {
			errs[i] = t.list(ctx, l)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	for i, err := range errs {
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case meta.IsNoMatchError(err) || apierrors.IsNotFound(err) && strings.HasPrefix(kindOf(lists[i]), "VirtualIP"):
			return nil, fmt.Errorf("IronLB is not installed: the cluster has no kinds of %s", v1alpha1.GroupVersion)
		case !apierrors.IsForbidden(err): // no connection
			return nil, err
		default:
			kind := kindOf(lists[i])
			if slices.Contains([]string{"Services", "EndpointSlices"}, kind) && t.list(ctx, lists[i], client.InNamespace(namespace)) == nil {
				kind += diagnose.OfOthers
			}
			c.Unread[kind] = printable(err.Error())
		}
	}
	c.Services, c.Slices, c.Nodes, c.Namespaces = services.Items, endpoints.Items, nodes.Items, namespaces.Items
	c.Pools, c.L2, c.BGP, c.Peers = pools.Items, l2.Items, bgp.Items, peers.Items
	c.VirtualIPs, c.Speakers = vips.Items, speakers.Items
	t.controller(ctx, c)
	c.Sort()
	return c, nil
}

// kindOf names the objects of a list.
func kindOf(l client.ObjectList) string {
	name := strings.TrimSuffix(reflect.TypeOf(l).Elem().Name(), "List")
	if strings.HasSuffix(name, "Status") {
		return name + "es"
	}
	return name + "s"
}

// controller reads the settings of ironlb-ccm from its Deployment, and whether it and the speakers run. Without the
// Deployment the defaults count; without the right to read it that is noted.
func (t *tool) controller(ctx context.Context, c *diagnose.Cluster) {
	c.Settings.Scope = servicerecord.DefaultScope()
	var d appsv1.Deployment
	switch err := t.client.Get(ctx, client.ObjectKey{Namespace: t.system, Name: v1alpha1.ControllerName}, &d); {
	case apierrors.IsNotFound(err):
		return // run in another way
	case err != nil:
		c.Unread["Deployments"] = printable(err.Error())
		return
	}
	if len(d.Spec.Template.Spec.Containers) > 0 {
		c.Settings = settingsOf(d.Spec.Template.Spec.Containers[0].Args)
	}
	var speakers appsv1.DaemonSet
	if err := t.client.Get(ctx, client.ObjectKey{Namespace: t.system, Name: "ironlb-speaker"}, &speakers); err == nil {
		if s := speakers.Status; s.NumberReady < s.DesiredNumberScheduled {
			c.Daemons = fmt.Sprintf("%d of %d Pods of DaemonSet %s/%s are ready", s.NumberReady, s.DesiredNumberScheduled, speakers.Namespace, speakers.Name)
		}
	}
	if d.Status.AvailableReplicas == 0 {
		c.Controller = fmt.Sprintf("no replica of Deployment %s/%s is available", d.Namespace, d.Name)
		return
	}
	var lease coordinationv1.Lease
	if err := t.client.Get(ctx, client.ObjectKey{Namespace: t.system, Name: v1alpha1.ControllerName}, &lease); err != nil {
		return
	}
	held := lease.Spec.RenewTime
	if held != nil && lease.Spec.LeaseDurationSeconds != nil && t.now().Sub(held.Time).Seconds() > 3*float64(*lease.Spec.LeaseDurationSeconds) {
		c.Controller = fmt.Sprintf("no replica has renewed Lease %s/%s for %s", lease.Namespace, lease.Name, t.ago(&metav1.Time{Time: held.Time}))
	}
}

// settingsOf reads the arguments of ironlb-ccm that a diagnosis depends on. The last one of a flag counts, as with the
// program.
func settingsOf(args []string) diagnose.Settings {
	s := diagnose.Settings{Scope: servicerecord.DefaultScope()}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		on := cmp.Or(value, "true") == "true"
		switch name {
		case "load-balancer-class":
			s.Class = value
		case "only-class":
			s.OnlyClass = on
		case "ip-mode":
			s.IPMode = value
		case "forwarding":
			s.Forwarding = v1alpha1.Forwarding(value)
		case "ignore-exclude-lb":
			s.IgnoreExclude = on
		}
	}
	return s
}
