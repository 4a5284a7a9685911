package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// New returns a Source and a Reporter that talk to the API server of the configuration. Nothing is asked before Run, so
// the API server may be away at the start.
func New(config *rest.Config, kick func(), log *slog.Logger) (*Source, *Reporter, error) {
	core := rest.CopyConfig(config)
	core.ContentType = runtime.ContentTypeProtobuf
	core.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	clients, err := kubernetes.NewForConfig(core)
	if err != nil {
		return nil, nil, fmt.Errorf("make the API client: %w", err)
	}
	own, err := ownClient(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make the API client of %s: %w", v1alpha1.GroupVersion, err)
	}
	source, err := newSource([]watch{
		{kindService, &corev1.Service{}, list(clients.CoreV1().RESTClient(), kindService, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.type", string(corev1.ServiceTypeLoadBalancer)).String()
		}), convertService},
		{kindSlice, &discoveryv1.EndpointSlice{}, list(clients.DiscoveryV1().RESTClient(), kindSlice, func(o *metav1.ListOptions) {
			o.LabelSelector = discoveryv1.LabelServiceName + ",!" + corev1.IsHeadlessService
		}), convertSlice},
		{kindNode, &corev1.Node{}, list(clients.CoreV1().RESTClient(), kindNode, nil), convertNode},
		{kindVIP, &v1alpha1.VirtualIP{}, list(own, kindVIP, nil), convertVIP},
		{kindAdvertisement, &v1alpha1.L2Advertisement{}, list(own, kindAdvertisement, nil), convertAdvertisement},
	}, kick, log)
	if err != nil {
		return nil, nil, err
	}
	return source, newReporter(source.informers[kindVIP].GetStore(), patcher(own), log), nil
}

// ownClient returns a client of our own API group.
func ownClient(config *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	own := rest.CopyConfig(config)
	own.GroupVersion = &v1alpha1.GroupVersion
	own.APIPath = "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if own.UserAgent == "" {
		own.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	return rest.RESTClientFor(own)
}

// list watches a resource in all namespaces.
func list(client cache.Getter, resource string, options func(*metav1.ListOptions)) cache.ListerWatcher {
	if options == nil {
		options = func(*metav1.ListOptions) {}
	}
	return cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, options)
}

// logOnce logs the first of a row of equal errors of a watch; the reflector tries again by itself.
func logOnce(kind string, log *slog.Logger) cache.WatchErrorHandlerWithContext {
	var last atomic.Pointer[string]
	return func(_ context.Context, _ *cache.Reflector, err error) {
		text := err.Error()
		if before := last.Swap(&text); before == nil || *before != text {
			log.Warn("cannot watch the API server; what was known last stays in use", "resource", kind, "error", err)
		}
	}
}
