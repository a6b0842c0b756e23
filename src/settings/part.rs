/// What may be left unsaid, and is then said by what lies below.
pub(super) trait Part {
    fn is_unset(&self) -> bool;

    /// This where it says something, and `below` where it doesn't.
    #[must_use]
    fn over(self, below: Self) -> Self;
}

impl<T> Part for Option<T> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }

    fn over(self, below: Self) -> Self {
        self.or(below)
    }
}

/// Settings whose fields may each be left unsaid, and whose names are all there are.
macro_rules! settings {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$of_field:meta])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        #[non_exhaustive]
        $vis struct $name {
            $(
                $(#[$of_field])*
                #[serde(skip_serializing_if = "crate::settings::part::Part::is_unset")]
                pub $field: $type,
            )*
        }

        impl crate::settings::part::Part for $name {
            fn is_unset(&self) -> bool {
                $(crate::settings::part::Part::is_unset(&self.$field))&&*
            }

            fn over(self, below: Self) -> Self {
                Self { $($field: crate::settings::part::Part::over(self.$field, below.$field),)* }
            }
        }
    };
}

pub(super) use settings;
