package lab

import (
	"context"
	"embed"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"text/template"
	"time"
)

//go:embed addons
var addons embed.FS

// References of the lab's own images. The registry does not exist and is never contacted: the nodes import the images.
const (
	sandboxImage   = "localhost/lab/pause:1"
	corednsImage   = "localhost/lab/coredns:1"
	kubeProxyImage = "localhost/lab/kube-proxy:1"
	serverImage    = "localhost/lab/labpod:1"
)

// applyAddons applies the addons of every cluster: DNS, and kube-proxy if configured.
func (c *Cluster) applyAddons(ctx context.Context) error {
	for _, name := range c.addons() {
		text, err := c.addon(name)
		if err != nil {
			return err
		}
		if err := c.ApplyYAML(ctx, text); err != nil {
			return fmt.Errorf("install %s: %w", name, err)
		}
	}
	return nil
}

func (c *Cluster) addons() []string {
	if c.cfg.Kubelets.KubeProxy == "" {
		return []string{"coredns"}
	}
	return []string{"kube-proxy", "coredns"}
}

func (c *Cluster) addon(name string) (string, error) {
	t, err := template.ParseFS(addons, "addons/"+name+".yaml")
	if err != nil {
		return "", err
	}
	ranges := []netip.Prefix{kubeletPodRange, kubeletPodRange6}
	if c.cfg.Kubelets.SingleStack {
		ranges = ranges[:1]
	}
	var text strings.Builder
	err = t.Execute(&text, map[string]any{
		"CoreDNS": corednsImage, "KubeProxy": kubeProxyImage, "Mode": c.cfg.Kubelets.KubeProxy, "NoProxy": c.cfg.Kubelets.KubeProxy == "",
		"DNS": clusterDNS, "APIServer": apiServer, "PodRanges": joined(ranges),
	})
	return text.String(), err
}

// waitAddons waits until the Pods of the addons run.
func (c *Cluster) waitAddons(ctx context.Context) error {
	for kind, name := range map[string]string{"daemonset": "kube-proxy", "deployment": "coredns"} {
		if kind == "daemonset" && c.cfg.Kubelets.KubeProxy == "" {
			continue
		}
		if _, err := c.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "--timeout="+c.limit(2*time.Minute).String(), kind+"/"+name); err != nil {
			return fmt.Errorf("wait for %s: %w", name, err)
		}
	}
	return nil
}

// Specs of images.
const (
	labSpecs     = "test/lab/images/"
	productSpecs = "deploy/images/"
)

// buildImages builds the images of the cluster and returns their archives.
func (c *Cluster) buildImages(ctx context.Context) ([]string, error) {
	specs := append([]string{labSpecs + "pause.yaml", labSpecs + "coredns.yaml", labSpecs + "labpod.yaml"}, c.cfg.Kubelets.Specs...)
	references := map[string]string{"pause": sandboxImage, "coredns": corednsImage, "labpod": serverImage}
	if c.cfg.Kubelets.KubeProxy != "" {
		specs = append(specs, labSpecs+"kube-proxy.yaml")
		references["kube-proxy"] = kubeProxyImage
	}
	c.printf("building the images")
	maps.Copy(references, c.cfg.Kubelets.References)
	archives, err := c.build.Images(ctx, c.build.Dir, references, specs...)
	if err != nil || c.cfg.Bare {
		return archives, err
	}
	specs = nil
	for _, name := range productPrograms {
		specs = append(specs, productSpecs+name+".yaml")
	}
	product, err := c.build.Images(ctx, c.build.Private, nil, specs...)
	return append(archives, product...), err
}

// productPrograms are the programs with an image.
var productPrograms = []string{"ironlb-ccm", "ironlb-speaker", "ironlb-bgpd"}
