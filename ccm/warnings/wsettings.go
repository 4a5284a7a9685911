package warnings

import (
	v1 "k8s.io/api/core/v1"

	"github.com/ironlb/ironlb/ccm/servicerecord"
	"github.com/ironlb/ironlb/pools/v1alpha1"
)

// Settings are the flags that decide which warnings a Service gets.
type Settings struct {
	servicerecord.Scope
	// ServiceProxy means that the speakers serve every Service that names no other proxy. ExternalIPCIDRs contain the
	// external IPs that they serve.
	ServiceProxy    bool
	ExternalIPCIDRs []string
}

// proxies reports whether the speakers serve the Service as kube-proxy would, including its external IPs.
func (s *Settings) proxies(svc *v1.Service) bool {
	proxy, labelled := svc.Labels[v1alpha1.LabelProxy]
	return (s.ServiceProxy && !labelled || proxy == v1alpha1.ProxyName) && svc.Spec.ClusterIP != "" && svc.Spec.ClusterIP != v1.ClusterIPNone &&
		svc.Spec.Type != v1.ServiceTypeExternalName
}
