package manifest

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// Right is one privilege of a container.
type Right struct {
	Container string
	Account   string // ServiceAccount of the container
	Kind      string // ClusterRole, Role, ClusterRoleBinding, RoleBinding, Capability or Privileged
	Namespace string // of a Role or RoleBinding
	Object    string // name of the role or binding; the capability itself
	Rule      rbacv1.PolicyRule
	Of        string // the role that a binding grants
}

// Kinds of rights of a securityContext.
const (
	Capability = "capability"
	Privileged = "privileged"
)

// InAPI reports whether RBAC grants the right.
func (r Right) InAPI() bool { return r.Kind != Capability && r.Kind != Privileged }

// IsRule reports whether the right is a rule of a role of the product; a binding grants a role that Kubernetes has.
func (r Right) IsRule() bool { return r.InAPI() && r.Of == "" }

// Key is what a check names to run first for the right: "verb resource", or the name of the granted role or capability.
func (r Right) Key() string {
	switch {
	case r.IsRule():
		return r.Rule.Verbs[0] + " " + r.Rule.Resources[0]
	case r.InAPI():
		return r.Of
	case r.Kind == Capability:
		return r.Object
	}
	return Privileged
}

// Review returns a SubjectAccessReview of the right for the account, in its namespace.
func (r Right) Review(namespace string) *authorizationv1.SubjectAccessReview {
	request := &authorizationv1.ResourceAttributes{Namespace: r.Namespace}
	switch {
	case r.IsRule():
		request.Group, request.Verb = r.Rule.APIGroups[0], r.Rule.Verbs[0]
		request.Resource, request.Subresource, _ = strings.Cut(r.Rule.Resources[0], "/")
		if len(r.Rule.ResourceNames) > 0 {
			request.Name = r.Rule.ResourceNames[0]
		}
	case r.Kind == "ClusterRoleBinding":
		request.Group, request.Resource, request.Verb = "authentication.k8s.io", "tokenreviews", "create"
	default:
		request.Resource, request.Name, request.Verb = "configmaps", "extension-apiserver-authentication", "get"
	}
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + namespace + ":" + r.Account,
		Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
		ResourceAttributes: request,
	}}
}

func (r Right) String() string {
	switch {
	case r.IsRule():
		text := r.Key()
		if group := r.Rule.APIGroups[0]; group != "" {
			text += "." + group
		}
		if len(r.Rule.ResourceNames) > 0 {
			text += " " + strings.Join(r.Rule.ResourceNames, ",")
		}
		return text
	case r.InAPI():
		return "role " + r.Of
	}
	return cmp.Or(r.Object, r.Kind)
}

// GrantedBy returns what grants the right: a kind of RBAC or the securityContext.
func (r Right) GrantedBy() string {
	if r.InAPI() {
		return r.Kind
	}
	return "securityContext"
}

// Rules splits rules into rules with one group, resource and verb each.
func Rules(in []rbacv1.PolicyRule) (out []rbacv1.PolicyRule) {
	for _, rule := range in {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					out = append(out, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{verb}, ResourceNames: rule.ResourceNames})
				}
			}
		}
	}
	return out
}

// Rights returns all rights that the rendered manifests grant.
func Rights(root string) (all []Right, err error) {
	docs, err := Load(root, File)
	if err != nil {
		return nil, err
	}
	containers := map[string]string{} // by account; the last container is the account's own
	for _, doc := range docs.Only("Deployment", "DaemonSet") {
		var w workload
		if err := yaml.Unmarshal([]byte(doc.Text), &w); err != nil {
			return nil, fmt.Errorf("read %s %s: %w", doc.Kind, doc.Name, err)
		}
		pod := w.Spec.Template.Spec
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			containers[pod.ServiceAccountName] = c.Name
			p, err := Read(filepath.Join(root, "deploy"), c.Name)
			if err != nil {
				return nil, err
			}
			for _, name := range p.Capabilities {
				all = append(all, Right{Container: c.Name, Account: pod.ServiceAccountName, Kind: Capability, Object: name})
			}
			if p.Privileged {
				all = append(all, Right{Container: c.Name, Account: pod.ServiceAccountName, Kind: Privileged})
			}
		}
	}
	bound := map[string]string{} // account by "Kind/name" of the role
	for _, doc := range docs.Only("ClusterRoleBinding", "RoleBinding") {
		var b rbacv1.ClusterRoleBinding // a RoleBinding has the same fields
		if err := yaml.UnmarshalStrict([]byte(doc.Text), &b); err != nil {
			return nil, fmt.Errorf("read %s %s: %w", doc.Kind, doc.Name, err)
		}
		if len(b.Subjects) != 1 || containers[b.Subjects[0].Name] == "" {
			return nil, fmt.Errorf("%s %s: its subjects are %v, want one ServiceAccount of a workload", doc.Kind, doc.Name, b.Subjects)
		}
		account := b.Subjects[0].Name
		if _, err := docs.Find(b.RoleRef.Kind, b.RoleRef.Name); err != nil {
			all = append(all, Right{Container: containers[account], Account: account, Kind: doc.Kind, Namespace: doc.Namespace, Object: doc.Name, Of: b.RoleRef.Name})
			continue
		}
		bound[b.RoleRef.Kind+"/"+b.RoleRef.Name] = account
	}
	for _, doc := range docs.Only("ClusterRole", "Role") {
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict([]byte(doc.Text), &role); err != nil {
			return nil, fmt.Errorf("read %s %s: %w", doc.Kind, doc.Name, err)
		}
		if _, is := role.Labels["rbac.authorization.k8s.io/aggregate-to-view"]; is {
			continue // a right of users
		}
		account := bound[doc.Kind+"/"+doc.Name]
		if account == "" {
			return nil, fmt.Errorf("%s %s is bound to no account: remove it, or bind it", doc.Kind, doc.Name)
		}
		for _, rule := range Rules(role.Rules) {
			if rule.APIGroups[0] == "*" || rule.Resources[0] == "*" || rule.Verbs[0] == "*" {
				return nil, fmt.Errorf("%s %s: a rule has a wildcard: name what it grants", doc.Kind, doc.Name)
			}
			all = append(all, Right{Container: containers[account], Account: account, Kind: doc.Kind, Namespace: doc.Namespace, Object: doc.Name, Rule: rule})
		}
	}
	return all, nil
}
