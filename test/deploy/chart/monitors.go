package chart

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/ironlb/ironlb/test/lab/manifest"
)

// Endpoint is an endpoint of a ServiceMonitor, as the Prometheus Operator defines it, with the fields that the chart
// uses.
type Endpoint struct {
	Port            string `json:"port"`
	Scheme          string `json:"scheme"`
	Path            string `json:"path"`
	HonorLabels     bool   `json:"honorLabels"`
	Interval        string `json:"interval"`
	BearerTokenFile string `json:"bearerTokenFile"`
	Authorization   *struct {
		Credentials corev1.SecretKeySelector `json:"credentials"`
	} `json:"authorization"`
	TLSConfig struct {
		InsecureSkipVerify bool   `json:"insecureSkipVerify"`
		ServerName         string `json:"serverName"`
	} `json:"tlsConfig"`
	Relabelings []Relabeling `json:"relabelings"`

	// Service is that of the Pods, and Number the number of Port.
	Service corev1.Service `json:"-"`
	Number  int32          `json:"-"`
}

// Relabeling sets a label of a target.
type Relabeling struct {
	SourceLabels []string `json:"sourceLabels"`
	TargetLabel  string   `json:"targetLabel"`
	Replacement  string   `json:"replacement"`
}

// Job returns the label job of the targets.
func (e Endpoint) Job() string {
	for _, r := range e.Relabelings {
		if r.TargetLabel == "job" {
			return r.Replacement
		}
	}
	return ""
}

// Endpoints returns the endpoints of all ServiceMonitors of the chart. A field that Endpoint lacks is an error, and so
// is a ServiceMonitor that selects no Service.
func Endpoints(docs manifest.Documents) (all []Endpoint, err error) {
	for _, d := range docs.Only("ServiceMonitor") {
		var monitor struct {
			APIVersion, Kind string
			Metadata         any
			Spec             struct {
				Selector  struct{ MatchLabels map[string]string }
				Endpoints []Endpoint
			}
		}
		if err := yaml.UnmarshalStrict([]byte(d.Text), &monitor); err != nil {
			return nil, fmt.Errorf("ServiceMonitor %s: %w", d.Name, err)
		}
		service, err := selected(docs, monitor.Spec.Selector.MatchLabels)
		if err != nil {
			return nil, fmt.Errorf("ServiceMonitor %s: %w", d.Name, err)
		}
		for _, e := range monitor.Spec.Endpoints {
			e.Service = service
			for _, p := range service.Spec.Ports {
				if p.Name == e.Port {
					e.Number = p.Port
				}
			}
			if e.Number == 0 {
				return nil, fmt.Errorf("ServiceMonitor %s: Service %s has no port %s", d.Name, service.Name, e.Port)
			}
			all = append(all, e)
		}
	}
	return all, nil
}

// selected returns the one Service with these labels.
func selected(docs manifest.Documents, labels map[string]string) (found corev1.Service, err error) {
	n := 0
	for _, d := range docs.Only("Service") {
		var s corev1.Service
		if err := yaml.UnmarshalStrict([]byte(d.Text), &s); err != nil {
			return found, fmt.Errorf("read Service %s: %w", d.Name, err)
		}
		matches := true
		for key, value := range labels {
			matches = matches && s.Labels[key] == value
		}
		if matches {
			found = s
			n++
		}
	}
	if n != 1 {
		return found, fmt.Errorf("it selects %d Services, want one", n)
	}
	return found, nil
}
