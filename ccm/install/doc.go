// Package install is what the subcommands of ironlb-ccm do to an installation: CRDs applies the
// CustomResourceDefinitions, and Release removes IronLB's fields from all Services and deletes the derived objects.
package install
